"""Runs a program text as a user would, under `finitude run` or under plain Python, and hands back all it left.

Importing torch takes seconds, so one server process (this file, started as a program) imports torch and finitude once,
runs no op, and forks a child for each run; the child goes through the entry function of the command line and ends as a
process of its own ends: exit functions, flushed streams, signals. `cold=True` starts a fresh interpreter instead. What a
test or its program starts itself is forked too where its command line begins with warm_python(); but for the end of an
interpreter (objects that are destroyed, files that nobody closed) that shows what a fresh one shows. Ranks are forked
from a second server: see python_of_ranks.
"""

import atexit
import dataclasses
import gc
import importlib.util
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import textwrap
import time

from finitude.base import checked_json, programs

LIMIT = 180  # seconds for one run, which takes a few; a busy machine takes ten times as long
_TOOLS = pathlib.Path(__file__).resolve().parents[1] / "tools"

# Whether a run that continues after an alarm has its capsule replayed by `finitude-replay`, as it has for a user. That
# program loads libtorch, which takes longer than all else of such a run; so it is done where capsules are the subject
# (tests/capsule, and the tests that ask for it), in cold runs, in the tests of make test-thorough, and where a run
# stops, which replays within itself.
REPLAYS = bool(os.environ.get("FINITUDE_ALL_TRIES"))


@dataclasses.dataclass
class Result:
    """What a run left behind."""

    code: int  # negative: ended by that signal
    out: str
    err: str
    report: dict  # None: no report was written
    folder: pathlib.Path

    @property
    def alarms(self):
        return self.report["alarms"]

    @property
    def watched(self):
        return self.report["watched"]

    def advisories(self, kind=None):
        return [a for a in self.report["advisories"] if kind in (None, a["kind"])]

    def the_alarm(self):
        """The only alarm of a run that had one."""
        assert self.report["outcome"] == "alarm", self.text()
        assert len(self.alarms) == 1, self.text()
        return self.alarms[0]

    def assert_silent(self):
        """A healthy run: nothing said but the closing line, and the script ended well."""
        assert (self.code, self.report["outcome"]) == (0, "clean"), self.text()
        assert not self.alarms and not self.advisories(), self.text()
        assert self.watched["handled_by_script"] == 0, self.text()

    def assert_no_alarm(self):
        assert self.code == 0 and self.report["outcome"] != "alarm" and not self.alarms, self.text()

    def text(self):
        """All that the run said, for a failed assertion."""
        short = {k: (self.report or {}).get(k) for k in ("outcome", "reason", "watched", "advisories")}
        sinks = [
            (a["step"], a["sink"], a["harmless"], a["cause"]["class"]) for a in (self.report or {}).get("alarms", [])
        ]
        return f"exit code {self.code}\n{self.out}\n{self.err}\n{sinks}\n{json.dumps(short, indent=1)}"


# What the scripts of the contract tests begin with: a small healthy training to put one fault into.
TRAINING = """
import torch
from torch import nn
NAN, INF = float("nan"), float("inf")
torch.manual_seed(0)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(8, 4) for _ in range(6)]
def loss_of(x, y=1.0):
    return (model(x) - y).pow(2).mean()
def finite():
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())
"""

# Finite in value, not in gradient: the derivative of the square root at zero.
ENDLESS_SLOPE = "(model.weight - model.weight.detach()).sqrt().sum()"


def training(folder, body, *options, **more):
    """Runs TRAINING and then `body`; a bad step raises at once, so that only the verdict is under test."""
    text = TRAINING + textwrap.dedent(body).replace("ENDLESS_SLOPE", ENDLESS_SLOPE)
    return run(folder, text, *(options or ("--on-alarm", "raise")), **more)


def put_about(folder, about):
    """Rewrites capsule.json, with its checksum: a capsule of another content, and not a damaged one."""
    (pathlib.Path(folder) / "capsule.json").write_bytes(checked_json.text_of(about))


def write_script(folder, text, name="train.py"):
    path = pathlib.Path(folder, name)
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return path


def run(folder, text, *options, args=(), name="train.py", env=None, cold=False, limit=LIMIT, python=(sys.executable,)):
    """`finitude run --report report.json *options name *args` in `folder`, with `text` as the script."""
    if text is not None:
        write_script(folder, text, name)
    words = "run", "--report", "report.json", *options, name, *args
    return finitude(folder, *words, env=env, cold=cold, limit=limit, python=python)


def finitude(folder, *words, env=None, cold=False, limit=LIMIT, python=(sys.executable,)):
    """The command line `finitude *words`, run in `folder`; `limit` (seconds) is that of a cold run, `python` what a
    cold run starts: an interpreter of its own, `warm_python()` or `python_of_ranks()`."""
    folder = pathlib.Path(folder)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    if cold:
        done = subprocess.run(
            [*python, "-m", "finitude", *words],
            cwd=folder,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            preexec_fn=hears_signals,
        )
        code, out, err = done.returncode, done.stdout.decode(), done.stderr.decode()
    else:
        code, out, err = _server().run(folder, list(words), env or {}, replays=REPLAYS)
    found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None
    return Result(code, out, err, found, folder)


def offline(*words):
    """The program that answers `finitude report`, `dump` and `list`: (exit code, standard output, standard error)."""
    command = [programs.path_of(programs.OFFLINE), *map(str, words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def plain(folder, *words, env=None, cold=False, limit=LIMIT):
    """`python *words`, without us: what a watched run is compared with. A script is forked from the server too. limit:
    of a cold run."""
    words = list(map(str, words))
    if not cold and words[0].endswith(".py"):
        code, out, err = _server().run(folder, words, env or {}, plain=True, replays=REPLAYS)
        return Result(code, out, err, None, pathlib.Path(folder))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit,
        preexec_fn=hears_signals,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode(), None, pathlib.Path(folder))


def hears_signals():
    """Also where the tests themselves run in the background of a shell or under nohup, which leave these two
    ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def without_closing_line(err):
    """Standard error but for the one line that we add at the end; that there is exactly one is checked."""
    lines = err.splitlines(keepends=True)
    ours = [line for line in lines if line.startswith("finitude: ")]
    assert len(ours) == 1, f"one closing line is wanted, not {len(ours)}:\n{err}"
    return "".join(line for line in lines if line is not ours[0])


def environment(extra):
    """Import paths made absolute (the run has another directory); no setting of ours leaks in from outside."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FINITUDE_")}
    if kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in kept["PYTHONPATH"].split(os.pathsep) if p)
    return {**kept, "OMP_NUM_THREADS": "1", **(extra or {})}


# -- the server ---------------------------------------------------------------------------------------


class _Server:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(None),
            text=True,
        )
        self.python = json.loads(self.process.stdout.readline())
        atexit.register(self.end)

    def run(self, folder, words, env, plain=False, replays=False):
        order = {"words": words, "folder": str(folder), "env": env, "plain": plain, "replays": replays}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the server that forks the runs has ended"
        code = json.loads(answer)["code"]
        assert code != "limit", f"the run did not end within {LIMIT} s: {words}"
        texts = [pathlib.Path(folder, name).read_bytes().decode() for name in (".stdout", ".stderr")]
        return code, *texts

    def end(self):
        self.process.stdin.close()
        self.process.wait()


_the_server = None


def _server():
    global _the_server
    if _the_server is None:
        _the_server = _Server()
    return _the_server


def warm_python():
    """The words that begin a command line in place of the interpreter (`*warm_python(), "-m", "finitude"`): the process
    is forked from the server of the runs, with the streams, environment, directory and namespaces that it was given.
    Who starts it has a process that ends as the fork ends, and that passes signals to it."""
    return _server().python


class _ServerOfRanks:
    """Forks the ranks of a run, and their second processes. It has imported what programs of several ranks import, so
    it is another one than that of single processes. The processes of one pytest-xdist run have one together: the first
    that needs it starts it, the others hold it."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), _OF_RANKS, _the_run()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(None),
            text=True,
        )
        self.python = json.loads(self.process.stdout.readline())
        spec = importlib.util.spec_from_file_location("warm_start", _TOOLS / "warm_start.py")
        warm_start = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(warm_start)
        self._held = warm_start.hold(warm_start.address(_the_run()))
        atexit.register(self.end)

    def end(self):
        self._held.close()
        self.process.stdin.close()
        self.process.wait()


def _the_run():
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())


_OF_RANKS = "ranks"  # what this file is started with as the server of ranks
_the_server_of_ranks = None


def python_of_ranks():
    """The words that begin a command line in place of the interpreter (`*python_of_ranks(), "train.py"`): the process is
    forked from a server that has imported torch, torch.distributed and finitude, with the streams, environment,
    directory and namespaces that it was given. Who starts it has a process that ends as the fork ends, and that passes
    signals to it."""
    global _the_server_of_ranks
    while _the_server_of_ranks is None:
        try:
            _the_server_of_ranks = _ServerOfRanks()
        except ConnectionError:  # that of another process has just ended
            continue
    return _the_server_of_ranks.python


def _serve_ranks(starter):
    """Forks what is asked for until standard input has ended and nobody holds the server. Returns the order in the
    fork, never in the server."""
    inputs = [sys.stdin]
    while inputs or starter.holders:
        is_busy = bool(starter.running())
        ready, _, _ = select.select([*inputs, starter, *starter.holders], [], [], 0.01 if is_busy else None)
        if sys.stdin in ready:
            inputs = []
        starter.let_go([one for one in ready if one in starter.holders])
        order = starter.turn()
        if order is not None:
            return order
    starter.end()
    os._exit(0)


def _serve(starter):
    """Forks a child per order, and for second processes. Returns the order in the child, never in the server."""
    answers = os.fdopen(os.dup(1), "w")
    while True:
        ready, _, _ = select.select([sys.stdin, starter], [], [], 0.01 if starter.running() else None)
        second = starter.turn()
        if second is not None:
            answers.close()
            return second
        if sys.stdin not in ready:
            continue
        line = sys.stdin.readline()  # all that has come: who asks waits for the answer
        if not line:
            starter.end()
            os._exit(0)
        order, others = json.loads(line), starter.running()
        child = os.fork()
        if child == 0:
            answers.close()
            starter.close()
            return order
        code, second = _wait(child, starter, others)
        if second is not None:
            answers.close()
            return second
        answers.write(json.dumps({"code": code}) + "\n")
        answers.flush()


def _wait(child, starter, others):
    """(The exit code of the child, whose whole process group ends with it, None); in a second process (None, its
    order). others: second processes that are not the child's."""
    until, code = time.monotonic() + LIMIT, "limit"
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            break
        second = starter.turn()
        if second is not None:
            return None, second
        time.sleep(0.005)
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    if code == "limit":
        os.waitpid(child, 0)
    while starter.running() - others:  # a second process ends with who started it
        second = starter.turn()
        if second is not None:
            return None, second
        time.sleep(0.001)
    return code, None


def _become(order):
    """The child takes on the place, streams and environment of a process of its own."""
    os.setsid()
    os.chdir(order["folder"])
    for name, descriptor in ((os.devnull, 0), (".stdout", 1), (".stderr", 2)):
        opened = os.open(name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(order["env"])
    sys.path[0] = order["folder"]  # `python -m finitude` puts the working directory there
    before = [] if order["plain"] else ["-m", "finitude"]
    sys.argv = order["words"] if order["plain"] else ["finitude", *order["words"]]
    sys.orig_argv = [sys.executable, *before, *order["words"]]
    if not order["replays"]:
        finitude.capsules.capsule.PLAYER = ""


def _program(words, plain):
    """What a process of its own would run."""

    def program():
        if plain:
            runpy.run_path(
                os.path.abspath(words[0]), run_name="__main__"
            )  # whose __file__ is absolute, as that of `python FILE`
            return 0
        return finitude.cli.main.main(words)

    return program


if __name__ == "__main__":
    sys.path.insert(0, str(_TOOLS))  # until the child takes its own place
    import warm_start

    _is_of_ranks = sys.argv[1:2] == [_OF_RANKS]
    _name = sys.argv[2] if _is_of_ranks else str(os.getpid())
    try:
        _starter = warm_start.Starter(_name, 4 * LIMIT if _is_of_ranks else None)
    except OSError:  # another process of the tests has started one
        _starter = None
    # Who asks before the imports below are done waits for them.
    print(json.dumps(warm_start.command(warm_start.address(_name), [sys.executable])), flush=True)
    if _starter is None:
        sys.exit(0)
    import forked
    import torch
    import torch._dynamo  # noqa: F401  optimizers pull it in

    import finitude.capsules.capsule
    import finitude.cli.main

    forked.import_what_runs_import()
    if _is_of_ranks:
        forked.import_what_ranks_import()
    hears_signals()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what was imported here
    del sys.path[1]
    _order = _serve_ranks(_starter) if _is_of_ranks else _serve(_starter)
    warm_start.second_processes_from(_starter.name, _order["words"])
    if "descriptors" in _order:
        _run = warm_start.second(_order, _is_of_ranks)
        forked.fill_memory(int(os.environ.get("MALLOC_PERTURB_", "0")))
    else:
        _become(_order)
        _run = _program(_order["words"], _order["plain"])
    os._exit(forked.end(forked.exit_code(_run)))
