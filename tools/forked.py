"""How a fork that replaces a `python` of its own lives and ends: shared by the zoo, the benches and the tests.

The parent has imported torch, which takes seconds; a fork of it goes through the same entry function as a fresh process
and has to end as one: exit code of whatever was raised, threads waited for, exit functions, flushed streams.
"""

import atexit
import ctypes
import importlib
import os
import sys
import threading
import traceback
import weakref


def exit_code(program):
    """Calls program(); the exit code that the interpreter would make of how it ended. Prints errors on stderr."""
    try:
        return program() or 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def import_what_runs_import():
    """In the parent: every module of finitude that a watched run comes to, which takes a fifth of a second in each of
    them otherwise. That a process of its own can import them is shown by every cold run."""
    for name in (
        "launch.run",
        "launch.child",
        "launch.compared",
        "launch.inject",
        "session.install",
        "session.session",
        "rerun.first_step",
        "cli.trial",
        "live.in_report",
    ):
        importlib.import_module(f"finitude.{name}")
    for finalizer in list(weakref.finalize._registry):  # of torch.library: they take the operators of torch apart
        finalizer.atexit = False


def import_what_ranks_import():
    """Likewise what programs of several ranks import of torch: seconds in each of them."""
    for name in (
        "_functional_collectives",
        "checkpoint",
        "fsdp.sharded_grad_scaler",
        "optim",
        "pipelining",
        "tensor.parallel",
    ):
        importlib.import_module(f"torch.distributed.{name}")


_PERTURB = -6  # M_PERTURB of glibc's mallopt


def fill_memory(byte):
    """From here on freed memory is filled with that byte, and what is handed out with its complement, here and in
    processes that this one starts. 0: it holds what chance left there. Does nothing without glibc."""
    if byte and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_PERTURB, byte)
        os.environ["MALLOC_PERTURB_"] = str(byte)


def end(code):
    """The end of an interpreter, but for taking torch apart, which costs a second. Returns the code for os._exit."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:
        traceback.print_exc()
        code = code or 1
    return code & 0xFF
