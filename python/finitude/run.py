"""`finitude run`: watch a program from its first line to its last, then report."""

import functools
import os
import random
import signal
import sys
import time

from . import launch


class Start:
    """What a second process needs to start the same program from the same state."""

    def __init__(self, command):
        self.command = command
        self.cwd = os.getcwd()
        self.monotonic = time.monotonic()
        self.hash_seed = os.environ.get("PYTHONHASHSEED")
        state = random.getstate()
        self.seeds = {"python": [state[0], list(state[1]), state[2]], "numpy": None}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, position, has_gauss, cached = numpy.random.get_state()
            self.seeds["numpy"] = [kind, [int(k) for k in keys], position, has_gauss, cached]


def restore_seeds(seeds):
    version, state, gauss = seeds["python"]
    random.setstate((version, tuple(state), gauss))
    if seeds["numpy"] is not None:
        import numpy

        kind, keys, position, has_gauss, cached = seeds["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))


def _unwatched(why):
    sys.stderr.write(f"finitude: {why}; the program runs unwatched.\n")


def main(settings, is_module, target, arguments, command):
    """Runs it. Ends by SystemExit (or by the program's own signal); never returns."""
    sys.argv = [target if not is_module else "-m", *arguments]
    session = _watch(settings, is_module, target, command)
    if not is_module:
        code = launch.check_script(target)
        if code is not None:
            if session is not None:
                session.failed(f"{target} cannot be run")
                session.end()
            sys.exit(code)
    if is_module:
        sys.path.insert(0, os.getcwd())
    elif os.path.isdir(target):
        target = os.path.abspath(target)
        sys.path.insert(0, target)
        target = os.path.join(target, "__main__.py")
    else:
        target = os.path.abspath(target)
        sys.path.insert(0, os.path.dirname(target))
    ended = launch.run_program(target, is_module)
    if session is not None:
        _end(session, ended)
    launch.finish(ended)


def _watch(settings, is_module, target, command):
    try:
        import torch
    except ImportError as e:
        _unwatched(f"torch cannot be imported ({e})")
        return None
    from . import compat

    why = compat.out_of_range(torch.__version__)
    if why is not None:
        _unwatched(why)
        return None
    try:
        from . import _cold, _native, install, restart
        from .session import Session
    except ImportError as e:
        _unwatched(f"the engine does not load with torch {torch.__version__} ({e})")
        return None
    target_step = restart.Target.from_environment()
    start = Start(command)
    if target_step is not None:
        restore_seeds(target_step.order["seeds"])
        torch.set_num_threads(target_step.order["threads"])
    session = Session(settings, target if is_module else os.path.abspath(target), command, target_step)
    session.start = start
    _cold.session = session
    install.install()
    if target_step is not None:
        target_step.arm()
    elif settings.level == "trace":
        _native.set_trace_level(True)
        _native.trace_start()
    _on_sigterm(session)
    _on_exit_without_unwinding(session)
    return session


def _on_exit_without_unwinding(session):
    """os._exit skips every cleanup; what was seen is written first."""
    leave = os._exit

    @functools.wraps(leave)
    def _exit(status):
        if os.getpid() == session.pid and session.target is None:
            try:
                session.end()
            except Exception:
                pass
        leave(status)

    os._exit = _exit


def _on_sigterm(session):
    """SIGTERM ends a program without unwinding; the report is written first, then it dies of the signal as it would have."""

    def handler(signum, frame):
        session.end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, handler)
    except ValueError:
        pass  # not the main thread


def _end(session, ended):
    from . import _cold, _native

    owner = session.pid == os.getpid()
    if not owner:
        return  # a child the script forked, on its own way out
    try:
        if session.pending is not None:
            ended.error, ended.code = session.second_run_lost(), 1
        if ended.error is not None or ended.code not in (None, 0):
            session.program_raised(ended.error or ended.exit)
        session.end()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        _cold._fail("the report")
    _native.set_on(False)
