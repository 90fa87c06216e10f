"""The Python API: watch, step, save, allow."""

import atexit

import torch  # noqa: F401  the engine's libraries must be loaded first

from . import _native
from .base import config
from .base.say import say
from .capsules import capsule
from .first_run import _cold, allowed, install
from .first_run.session import Session
from .program import cells
from .start import child

_begun = None  # the session that `watch` began last


class Watch:
    """A recorder that is on. Context manager; `close` takes every hook out and writes the report once. The end of the
    program closes one that nobody has."""

    def __init__(self, session, owner):
        self._session, self._owner = session, owner

    @property
    def alarms(self):
        """The alarms so far, as in the report JSON."""
        capsule.settle(self._session)
        return list(self._session.report.alarms)

    def report(self):
        """The report so far, as a dictionary (docs/report.schema.json)."""
        capsule.settle(self._session)
        return self._session.report.document()

    def _repr_html_(self):
        """What a notebook shows of it: the report so far."""
        if not self._session.report.worth_writing():
            return "<p>finitude: watching; no step yet</p>"
        return cells.page(self.report())

    def close(self):
        if not self._owner or _cold.session is not self._session:
            return
        self._session.end()
        install.uninstall()
        _cold.session = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is not None and _cold.session is self._session and self._owner:
            self._session.program_raised(error)
        self.close()


def _end():
    """The program has ended, and a capsule may be being written."""
    if _begun is not None and _cold.session is _begun:
        Watch(_begun, True).close()


def watch(model=None, optimizer=None, **options):
    """Watches every optimizer of this process from now on (those given are registered at once).

    model: a Module (used for names and buffers; may be None). optimizer: one, a list, or None.
    options: on_alarm, level, report, runs, undo_mb, max_skips, as on the command line.
    Under `finitude run` the run's own recorder is returned and options are ignored. Where another watch is on already
    (`%load_ext finitude` begins one), that one is returned; options that it has otherwise are named on stderr.
    """
    child.begin()  # in a process that a watched program started
    if _cold.session is not None:
        session, owner = _cold.session, False
        _name_unused(session, options)
    else:
        global _begun
        session, owner = Session(config.load(options)), True
        if _begun is None:
            atexit.register(_end)
        _cold.session = _begun = session
        _native.reset()
        _native.hand_reset()
        install.install(child.wait_for_training)
        cells.attach(session)
        if session.config.level == "trace":
            _native.set_trace_level(True)
            _native.trace_start()
        session.first_step.may_come(model is not None and not optimizer)
    if isinstance(model, torch.nn.Module):
        _native.watch_buffers(list(model.buffers()))
    optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
    for one in optimizers:
        session.on_created(one)
    return Watch(session, owner)


def _name_unused(session, options):
    """Of a watch that is on since before; under `finitude run` the command line is meant to win."""
    if session.start is not None or not options:
        return
    wanted = config.load(options)
    if unused := [
        f"{key}={value!r}" for key, value in options.items() if getattr(session.config, key) != getattr(wanted, key)
    ]:
        say(
            f"finitude: already watching, and not with {', '.join(unused)}: close that watch first "
            "(%unload_ext finitude)\n"
        )


def step(closure):
    """Runs one training step given as a closure; a bad step can then be run again by calling it once more.

    With an optimizer, in the closure or behind it, the closure is part of the step that the optimizer takes. Without
    one the closure is the step, with the writes to the parameters in it."""
    session = _cold.session
    if session is None:
        return closure()
    return session.units.call(closure) if _native.counters()["optimizers"] else session.hand.run(closure)


def save(name, tensor):
    """Keeps the statistics of a tensor under a name for the report of an alarm in this window. Returns the tensor."""
    if _cold.session is not None:
        from .program.counts import statistic

        _cold.session.saved[name] = statistic(name, tensor.detach())
    return tensor


def allow(module=None, op=None, tensor=None, reason=""):
    """Non-finite values born there are intended: no alarm. An allowance that was never used is listed at the end.

    module: qualified name; op: e.g. "aten::log"; tensor: one whose present values are intended.
    """
    if module is None and op is None and tensor is None:
        raise ValueError("allow needs module=, op= or tensor=")
    if not reason:
        raise ValueError("allow needs a reason= for whoever reads the report")
    if _cold.session is None:
        return
    if tensor is not None:
        _cold.session.allowed_tensors.append(tensor)
    else:
        _cold.session.allowed.append(allowed.Allowance(module, op, reason))
