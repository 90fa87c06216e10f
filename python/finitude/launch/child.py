"""A process that a watched program started. It is watched from its first optimizer or backward pass on, if it ever
trains.

Until then two functions of torch are replaced and nothing else is loaded: a DataLoader worker, a launcher's agent or
a helper that only imports torch pays nothing. Its reports go below the directory of the run; the process that was
started by `finitude run` makes one of them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys

from ..base import family
from ..base.say import say
from . import watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rerun.under_way import SecondRun
    from ..session.failures import Failures
    from ..session.program_exit import Ending

_waiting = []  # at most one _Standin
_leaving: SystemExit | None = None  # not 0, that the script left by


class _Standin:
    """In the place of what every training calls first."""

    def __init__(self, forked):
        import torch

        from ..rerun import launch_command

        self.forked = forked
        self.home = family.found()
        if not forked and self.home is not None and self.home.settings.seed:
            from ..program import seeding

            seeding.seed_all(int(self.home.settings.seed))
        self.start = launch_command.Start(None)
        self.order, self.at_once = (
            None,
            False,
        )  # at_once: it explains what a parameter began with, and is watched from here on
        if not forked and (path := os.environ.pop("FINITUDE_RESTART", None)):
            # This is a second process. Those that it starts run as they would without us.
            with open(path, encoding="utf-8") as f:
                self.order = json.load(f)
            launch_command.restore_seeds(self.order["seeds"])
            self.at_once = bool(self.order.get("start"))
            family.withdraw(os.environ)
            from ..rerun import overlay_fs

            overlay_fs.hold_the_rest()
        elif not forked and self.home is not None and self.home.orders:
            from ..rerun import restart_ranks

            restart_ranks.end_with(self.home.orders)
            if (order := restart_ranks.order_for_me(self.home)) is not None:
                launch_command.restore_seeds(order["seeds"])
                self.at_once = bool(order.get("start"))
        autograd, optimizer = torch.autograd, torch.optim.Optimizer
        backward, init = autograd.__dict__["_engine_run_backward"], optimizer.__dict__["__init__"]

        def engine_run_backward(*args, **kwargs):
            here = autograd.__dict__["_engine_run_backward"] is engine_run_backward
            return (autograd.__dict__["_engine_run_backward"] if begin() and here else backward)(*args, **kwargs)

        @functools.wraps(init)
        def __init__(this, *args, **kwargs):
            here = optimizer.__dict__["__init__"] is __init__
            # A spawned process first runs the top level of its parent's script: what that makes is no training yet.
            began = not _is_being_prepared() and begin()
            return (optimizer.__dict__["__init__"] if began and here else init)(this, *args, **kwargs)

        self._replaced = [
            (autograd, "_engine_run_backward", engine_run_backward, backward),
            (optimizer, "__init__", __init__, init),
        ]
        for owner, name, ours, _ in self._replaced:
            setattr(owner, name, ours)

    def remove(self) -> None:
        for owner, name, ours, original in self._replaced:
            if owner.__dict__[name] is ours:
                setattr(owner, name, original)


def _multiprocessing(what):
    """A value of multiprocessing.process's current process or module; None where that is not in use."""
    module = sys.modules.get("multiprocessing.process")
    return None if module is None else what(module)


def _is_being_prepared():
    return _multiprocessing(lambda m: getattr(m.current_process(), "_inheriting", None))


def _made_by_multiprocessing():
    return _multiprocessing(lambda m: m.parent_process()) is not None or "--multiprocessing-fork" in sys.orig_argv


def own_command():
    """The command line of this process: what started a second time would do the same. None: there is none, as in a
    child that multiprocessing made, which lives on what its parent hands it."""
    return None if _made_by_multiprocessing() else [sys.executable, *sys.orig_argv[1:]]


def wait_for_training(forked: bool = False) -> None:
    """From here on the first optimizer or backward pass of this process begins its watch."""
    let_go()
    _waiting.append(_Standin(forked))
    if _waiting[-1].at_once and not _is_being_prepared():
        begin()


def let_go():
    while _waiting:
        _waiting.pop().remove()


def begin() -> bool:
    """The process trains: watch it. True if this call began."""
    try:
        waiting = _waiting.pop()
    except IndexError:
        return False
    waiting.remove()
    from ..session import native_callbacks

    if native_callbacks.session is not None:
        return False
    home = waiting.home
    if home is None:
        return False
    if home.orders:
        from ..rerun import restart_ranks

        waiting.order = restart_ranks.order_for_me(home)
        if waiting.order is None:
            return False
    try:
        _watch(home, waiting)
    except BaseException as e:
        if isinstance(e, (KeyboardInterrupt, SystemExit)):
            raise
        _unwatched(home, f"{type(e).__name__}: {e}")
        return False
    return True


def _unwatched(home, why):
    """Leaves a note for the report of the whole."""
    say(f"finitude: process {os.getpid()} trains unwatched: {why}\n")
    try:
        directory = _make_directory(home)
        with open(os.path.join(directory, "unwatched.json"), "w", encoding="utf-8") as f:
            json.dump({"pid": os.getpid(), "reason": why}, f)
    except OSError:
        pass


def _make_directory(home):
    """A directory of this process's own below that of the run: rank-N for a rank, pid-N for others."""
    from ..program import ranks

    rank, size = ranks.world()
    names = [f"rank-{rank}", f"rank-{rank}-{os.getpid()}"] if size > 1 else [f"pid-{os.getpid()}"]
    os.makedirs(home.directory, exist_ok=True)
    for name in names:
        path = os.path.join(home.directory, name)
        try:
            os.mkdir(path)
            return path
        except FileExistsError:
            continue
    return path


def _watch(home, waiting):
    global _leaving
    _leaving = None  # a forked process has what its parent caught, which is no end of its own
    why = watched.why_not()
    if why is not None:
        return _unwatched(home, why)

    from .. import _native
    from ..rerun.target import Target
    from ..session import install, native_callbacks
    from ..session.session import Session
    from . import compared

    target = Target(waiting.order) if waiting.order else compared.from_environment()
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    waiting.start.command = None if waiting.forked else own_command()
    script = os.path.abspath(main) if main else ""
    session = Session(home.settings, script, sys.orig_argv, target, waiting.start, is_member=True)
    session.report.make_at(lambda: _make_directory(home))
    if waiting.forked:
        _native.reset()
        _native.hand_reset()
    native_callbacks.session = session
    install.install(wait_for_training)
    watched.begin_selftest(home.settings)
    session.attach_notebook()
    if target is not None:
        target.arm()
    elif session.config.level == "trace":
        _native.set_trace_level(True)
        _native.trace_start()
    _Process(session.ending, session.failures, session.second_run, target is not None).watch_end()
    return None


def _note_exit():
    """Remembers a sys.exit(not 0): what a script does that finds its loss bad and gives up."""
    leave = sys.exit

    @functools.wraps(leave)
    def exit(status=None, /):
        global _leaving
        stop = SystemExit(status)
        _leaving = stop if status else None
        raise stop

    sys.exit = exit


class _Process:
    """This process, once it is watched, and how it ends."""

    def __init__(
        self,
        ending: Ending,
        failures: Failures,
        second_run: SecondRun,
        explains: bool,
    ):
        """explains: this process explains a step of another one."""
        self._ending, self._failures, self._second_run, self._explains = ending, failures, second_run, explains
        self._pid = os.getpid()

    def watch_end(self) -> None:
        """SIGTERM is left alone: a rank that waits for the others inside torch could not answer it, and the one who
        sent it would wait. What such a rank has to report is written with each alarm; its steps are in its ring."""
        if not self._explains:
            watched.on_exit_without_unwinding(self._ending.end)
        if _made_by_multiprocessing():
            from multiprocessing import util

            util.Finalize(None, self._end, exitpriority=10)
        else:
            atexit.register(self._end)
            _note_exit()

    def _end(self) -> None:
        ending, part = self._ending, self._failures.part
        if ending.done or self._pid != os.getpid():
            return
        error = sys.exc_info()[1] or getattr(sys, "last_value", None) or _leaving
        if isinstance(error, SystemExit) and error.__context__ is not None:
            error = error.__context__  # torch.multiprocessing.spawn makes an exit of any exception
        from .. import _native
        from ..program import signals

        part(signals.hold, signals.ENDED)
        try:
            if self._second_run.pending is not None:
                part(ending.second_run_lost)
            elif error is not None:
                part(ending.program_raised, error)
            ending.close()
        except BaseException as e:  # Ctrl-C once more
            self._failures.note(e)
        part(signals.let_go)
        _native.set_on(False)
        _native.let_go()
