"""Second processes of a run that the server of the tests, or the runner of the zoo, forked: forked from it too, and not
started with an import of torch. The ranks of tests likewise, from a server of their own.

The run still starts a process (this file, as a program that does not import finitude), with the namespaces, streams and
directory that it gives a second process. It hands them to the server over a socket, waits for what the server forks,
and ends as that ends. Who kills this process kills the fork: the server sees the socket close. Other signals that it is
sent, the fork is sent."""

import array
import importlib
import json
import os
import signal
import socket
import sys
import time

_MOST = 1 << 20  # bytes of an order
_HOLD = b"hold"
_NAMESPACES = ("user", "mnt")
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_OURS = ["-m", "finitude"], ["-m", "finitude.selftest"], ["-m", "finitude.agents.tensor_stats"]
_STARTING = {
    "selftest": "finitude.selftest.command",
    "mcp": "finitude.agents.jobs",
}  # a word, and what starts processes


def address(name):
    return f"\0finitude-tests-{name}"


def hold(address):
    """A connection: the server stays for as long as it is open. OSError where there is none, or it is about to end."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    connection.send(_HOLD)
    if connection.recv(len(_HOLD)) != _HOLD:
        raise ConnectionResetError
    return connection


class Starter:
    """In the server: takes orders between two looks at the run. `turn` returns an order in a fork, else None."""

    def __init__(self, name="", limit=None):
        """name: by which others find it; OSError where another server has it. limit: seconds after which a fork is
        killed; None: who asked for it ends it."""
        self.name = address(name or os.getpid())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.name)
        self._socket.listen(64)
        self._socket.setblocking(False)
        self._limit = limit
        self._running = {}  # process: (connection, when it began)
        self.holders = []  # connections of those that want the server to stay

    def fileno(self):
        """Readable where an order is waiting."""
        return self._socket.fileno()

    def turn(self):
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            connection = None
        if connection is not None:
            data, ancillary, _, _ = connection.recvmsg(_MOST, socket.CMSG_SPACE(16 * 4))
            if data == _HOLD:
                connection.send(_HOLD)
                self.holders.append(connection)
                return None
            descriptors = array.array("i")
            for _, _, passed in ancillary:
                descriptors.frombytes(passed)
            child = os.fork()
            if child == 0:
                connection.close()
                self.close()
                return {**json.loads(data), "descriptors": list(descriptors)}
            self._running[child] = connection, time.monotonic()
            for d in descriptors:
                os.close(d)
        for child, (connection, began) in list(self._running.items()):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                self._answer(child, os.waitstatus_to_exitcode(status))
            elif self._is_gone(child, connection) or self._limit and time.monotonic() - began > self._limit:
                self._kill(child)
        return None

    def close(self):
        """In a fork, which serves nobody."""
        for open_here in (self._socket, *self.holders, *(c for c, _ in self._running.values())):
            open_here.close()

    def let_go(self, holders):
        """Of those among them that have left."""
        for connection in holders:
            if connection.recv(1) == b"":
                self.holders.remove(connection)
                connection.close()

    def end(self):
        """Kills what is running."""
        for child in list(self._running):
            self._kill(child)

    def _kill(self, child):
        os.kill(child, signal.SIGKILL)  # it may not lead a group yet
        _kill(child)
        os.waitpid(child, 0)
        self._running.pop(child)[0].close()

    def running(self):
        """The processes that somebody waits for."""
        return set(self._running)

    def _answer(self, child, code):
        connection, _ = self._running.pop(child)
        _kill(child)  # what it has started
        try:
            connection.send(str(code).encode())
        except OSError:
            pass
        connection.close()

    @staticmethod
    def _is_gone(child, connection):
        """Is who waits for it? Passes on what signals that one was sent."""
        try:
            while number := connection.recv(8, socket.MSG_DONTWAIT):
                os.kill(child, int(number))
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True


def _kill(child):
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def become(order):
    """The fork takes the place of the process that asked for it."""
    import ctypes

    os.setsid()
    *streams, directory, user, mount = order["descriptors"]
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor, name in ((user, "user"), (mount, "mnt")):  # the rights over the second come with the first
        if os.readlink(f"/proc/self/fd/{descriptor}") != os.readlink(f"/proc/self/ns/{name}"):
            assert libc.setns(descriptor, 0) == 0, os.strerror(ctypes.get_errno())
    os.fchdir(directory)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in order["descriptors"]:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # it may be another one in this environment
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # as random does by itself in a fork


def second_processes_from(name, words):
    """In `finitude *words`: our own modules start what they start through the server of that name, the program as
    ever."""
    import subprocess
    import types

    import finitude.cli.trial
    import finitude.rerun.process

    starting = [finitude.rerun.process, finitude.cli.trial]
    if words[:2] == ["-m", "finitude"]:
        words = words[2:]
    if words and words[0] in _STARTING:  # nothing of it may be there otherwise
        starting.append(importlib.import_module(_STARTING[words[0]]))

    def by_server(start):
        def call(words, *args, **keywords):
            warm = words[0] == sys.executable and (words[1:3] in _OURS or words[1].endswith(".py"))
            return start(command(name, words) if warm else words, *args, **keywords)

        return call

    ours = types.SimpleNamespace(
        **{**vars(subprocess), "Popen": by_server(subprocess.Popen), "run": by_server(subprocess.run)}
    )
    for module in starting:
        module.subprocess = ours
    finitude.rerun.process.OwnProcess = by_server(finitude.rerun.process.OwnProcess)


def second(order, is_rank=False):
    """The fork becomes that process. Returns its program. is_rank: one that a watched launcher started, which the hook
    of finitude comes into."""
    import runpy

    import finitude.cli.main

    become(order)
    words = order["words"]
    sys.orig_argv = [sys.executable, *words]
    sys.argv = words[1:] if words[:2] in _OURS else words
    sys.path[0] = os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.abspath(words[0]))

    def program():
        if words[:2] == ["-m", "finitude"]:
            return finitude.cli.main.main(words[2:])
        if is_rank:
            _hook()
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif is_rank:
            return _script(os.path.abspath(words[0]))
        else:
            runpy.run_path(words[0], run_name="__main__")
        return 0

    return program


def _hook():
    """What finitude/_hook/sitecustomize.py does once torch is imported, in a process of a run that is watched."""
    from finitude.base import family
    from finitude.launch import child

    if os.environ.get(family.VARIABLE):
        try:
            child.wait_for_training()
        except Exception as e:
            sys.stderr.write(f"finitude: process {os.getpid()} is not watched ({type(e).__name__}: {e})\n")


def _script(path):
    """Runs it as `python FILE` does, to its last traceback."""
    from finitude.launch import script

    ended = script.run_program(path, is_module=False)
    if ended.error is not None:
        script.finish(ended)
    if ended.exit is not None:
        raise ended.exit
    return 0


def command(name, words):
    """What a run starts in place of `words`, a command line of its own Python."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), name[1:], *words[1:]]


def _main():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + sys.argv[1])
    descriptors = [
        0,
        1,
        2,
        os.open(".", os.O_RDONLY | os.O_DIRECTORY),
        *(os.open(f"/proc/self/ns/{n}", os.O_RDONLY) for n in _NAMESPACES),
    ]
    order = json.dumps({"words": sys.argv[2:], "env": dict(os.environ)}).encode()
    connection.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    for number in _PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: connection.send(str(number).encode()))
    code = int(connection.recv(64) or b"1")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    _main()
