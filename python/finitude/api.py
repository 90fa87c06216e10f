"""The Python API: watch, step, save, metrics, allow."""

from __future__ import annotations

import atexit
import difflib
import functools
import math
import os
import sys

import torch  # the engine's libraries must be loaded first

from . import _native
from .base import config
from .base.say import say
from .effects import notebook_cells
from .launch import child
from .program import seeding
from .session import allowed, chosen_action, dump_shortfall, install, native_callbacks, watched_tensors
from .session.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from .base.types import (
        Alarm,
        Config,
        Document,
        Level,
        Module,
        OnAlarm,
        Optimizer,
        P,
        R,
        Streaming,
        Tensor,
        TextPath,
    )

SITE = os.sep + "site-packages" + os.sep
_begun: Any = None  # the session that `watch` began last


def _with_nearest(function: Callable[P, R]) -> Callable[P, R]:
    """A keyword that the function does not have is a TypeError that names the nearest one, as from Python 3.13 on."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for key in kwargs:
            if key not in names:
                close = difflib.get_close_matches(key, names, 1)
                hint = f". Did you mean {close[0]!r}?" if close else f"; it takes {', '.join(names)}"
                raise TypeError(f"{code.co_name}() got an unexpected keyword argument {key!r}{hint}")
        return function(*args, **kwargs)

    return call


class Watch:
    """A recorder that is on. Context manager; `close` takes every hook out and writes the report once. The end of the
    program closes one that nobody has."""

    def __init__(self, session: Session, owner: bool):
        self._session, self._owner = session, owner

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far, as in the report JSON (docs/report.schema.json)."""
        self._session.capsules.settle()
        return list(self._session.report.alarms)

    def report(self) -> Document:
        """The report so far, as a dictionary (docs/report.schema.json)."""
        self._session.capsules.settle()
        return self._session.report.document()

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the report so far."""
        if not self._session.report.worth_writing():
            return "<p>finitude: watching; no step yet</p>"
        return notebook_cells.page(self.report())

    def close(self) -> None:
        """Writes the reports and takes every hook out. The second call does nothing, nor does that of a handle
        to a watch that was on before."""
        if not self._owner or native_callbacks.session is not self._session:
            return
        self._session.ending.end()
        install.uninstall()
        native_callbacks.session = None
        self._session.chosen_action = None  # a function of the program, which may hold any of its objects

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and native_callbacks.session is self._session and self._owner:
            self._session.part(self._session.ending.program_raised, error)
        self.close()


def _end() -> None:
    """The program has ended, and a capsule may be being written."""
    if _begun is not None and native_callbacks.session is _begun:
        # At a prompt the last exception ended a line. Where the end has begun, this may be a process that it forked.
        if not (hasattr(sys, "ps1") or _begun.ending.done) and (error := getattr(sys, "last_value", None)) is not None:
            _begun.part(_begun.ending.program_raised, error)
        Watch(_begun, True).close()


@_with_nearest
def watch(
    model: Module | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    on_alarm: OnAlarm | Callable[[dict[str, Any]], str | None] | None = None,
    level: Level | None = None,
    tape_every: int | None = None,
    replicas_every: int | None = None,
    signals_together: float | None = None,
    verify: str | None = None,
    guard_memory: bool | None = None,
    report: TextPath | None = None,
    runs: TextPath | None = None,
    max_skips: int | None = None,
    max_bad: int | None = None,
    max_bad_share: str | float | None = None,
    then: str | None = None,
    cool_down: int | None = None,
    undo_mb: int | None = None,
    rollback_every: int | None = None,
    rollback_mb: int | None = None,
    rollback_lr: float | None = None,
    rollback_skip_rows: bool | None = None,
    lower_rate_factor: float | None = None,
    skip_rows: TextPath | None = None,
    restart_args: str | None = None,
    capsules: int | None = None,
    capsule_max: int | None = None,
    capsule_of_step: int | None = None,
    experiments: int | None = None,
    stream_gradients: Streaming | None = None,
    warnings: str | None = None,
    grad_warn: float | None = None,
    checkpoints: str | None = None,
    on_event: str | Callable[[dict[str, Any]], Any] | None = None,
    dump: str | None = None,
    dump_steps: str | None = None,
    dump_only: str | None = None,
    dump_mb: int | None = None,
    dump_control: TextPath | None = None,
    golden: TextPath | None = None,
    record_env: str | None = None,
    seed: int | str | None = None,
    redact: bool | None = None,
    quiet: bool | None = None,
    rules: str | list[str] | None = None,
    tensors: Mapping[str, Tensor | Callable[[], Tensor]] | None = None,
) -> Watch:
    """Watches every optimizer of this process from now on, and returns the handle that ends it.

        with finitude.watch(model, optimizer, on_alarm="skip"):
            ...train...

    The handle is a context manager; `close()` does the same, and so does the end of the program. A step whose loss or
    gradients are not finite is stopped before `optimizer.step()` applies it, run a second time and explained.

    Each option is one of `finitude run` (`finitude run --help`). None, the default: from the environment, as
    FINITUDE_ON_ALARM, else from [tool.finitude] of pyproject.toml, else the value in brackets.

    Args:
        model: the module that is trained; gives names to parameters and buffers. None: it is found by its parameters.
        optimizer: one optimizer or several, registered at once. Others are registered when they are created or step.
        on_alarm: what to do with a bad step ("stop").
            "stop": explain it, then raise NonFiniteError out of `optimizer.step()`.
            "skip": explain it, do not apply it and continue; stop after `max_skips` in a row.
            "warn": explain it and apply it.
            "raise": raise at once and explain nothing.
            "rollback": as "skip", and undo steps that the optimizer itself ruins (see `undo_mb`, `rollback_every`).
            A function: called with the explained alarm (a dictionary, as in the report) before the optimizer writes;
            returns one of these, or None for "skip". The limits of "skip" hold. It is not called with several ranks.
        level: what is recorded in healthy steps ("gate").
            "gate": nothing but the check.
            "tape": every operation without its values: explains a bad loss or gradient without running code again.
            "trace": every operation with its values.
        tape_every: with level "gate", record one healthy step in that many as "tape" does (0: none).
        replicas_every: steps between two comparisons of the bits of replicated parameters (0: none).
        signals_together: seconds in which SIGTERM and SIGUSR1 reach all ranks in the same step (0: as they come).
        verify: "every=N": compute one healthy step in N twice and compare the bits ("": none).
        guard_memory: under `finitude run`, explain a bad step by a second process whose CPU tensors have guard zones
            around their memory (False).
        report: file for the report as JSON, written with each alarm and at the end (none beside the one in `runs`).
        runs: directory for reports and capsules ("finitude-runs").
        max_skips: number of bad steps in a row before "skip" stops (10).
        max_bad: number of bad steps in all before any policy stops; 0: no limit (0).
        max_bad_share: P, or "P/W": share of the last W steps (100) that may be bad before any policy stops (no limit).
        then: "rollback", "skip", "lower-rate", "stop" or "raise", or several with commas: what follows "skip" and
            "rollback" where `max_skips` bad steps in a row were not enough ("stop"). "lower-rate": as "skip", and the
            first bad step of a row lowers the learning rate of its optimizer.
        cool_down: number of good steps after which `on_alarm` holds again (100).
        undo_mb: memory in MB for copies that undo a step (0: only where copies are cheap).
        rollback_every: with "rollback", copy the whole training after every so many steps, and go back to the newest
            good copy at an alarm (0: no copies).
        rollback_mb: host memory in MB for two of these copies (0: a quarter of what is free).
        rollback_lr: the learning rate is that many times what it was, each time that training goes back (1.0).
        rollback_skip_rows: True: the rows of a step that training went back from are not drawn again, from the next
            epoch on (False).
        lower_rate_factor: "lower-rate" makes the learning rate that many times what it was (0.5).
        skip_rows: file with rows that no DataLoader made from now on draws, of `finitude rows --skip-list` (none).
        restart_args: added to the program's arguments where `finitude run` starts it again to explain a step ("").
        capsules: number of capsules that a run keeps, the newest ones; 0: none (8).
        capsule_max: size in MB; a step that reads more gets no capsule (2048).
        capsule_of_step: a healthy step of the first optimizer that leaves a capsule (0: none).
        experiments: time in seconds for trying the fix and other changes on a bad step; 0: none (60).
        stream_gradients: "auto", "on" or "off": read gradients on a GPU while backward computes others ("auto").
        warnings: "all", "off", or names with commas of what to warn of while values are still finite: growth, spike,
            outlier, vanishing, scale, dead, clipping, norm, no-learning, headroom, vanishing-depth, exploding-depth,
            logits, attention, dropped ("all").
        grad_warn: a 2-norm of all gradients above it is warned of as "norm"; 0: none is (0).
        checkpoints: "warn", "refuse", "quarantine" or "off": what to do where a checkpoint that is written holds NaN,
            Inf or an impossible value ("warn").
            "refuse": raise NonFiniteError before the file is touched.
            "quarantine": write it into a folder "quarantine" beside, and keep the last good one.
        on_event: a function that is called with each event (a dictionary, as in events.jsonl), in a thread of
            Finitude's, after the event is on disk and not while a bad step is being explained; or a command, which
            gets the event as JSON on standard input, or an address of http or https, to which it is sent (none).
        dump: "statistics" of each operator, "checksums" or "tensors" of each module, for chosen steps (none).
        dump_steps: which steps: "10", "10-20", "every=100", "next=3", with commas ("every=100").
        dump_only: what of them: "module=encoder.*,op=mm,phase=backward,side=outputs,rank=0" (all; docs/dump.md).
        dump_mb: size in MB of all dumps of a process; 0: no limit (1024).
        dump_control: a TOML file with dump, steps and only, read again when it changes while training runs (none).
        golden: dumps of another run (a file, a folder of them, or a run): its steps are dumped in this run too and
            compared while it trains; the first difference is printed and an advisory (none).
        record_env: names with commas of further environment variables that run.json records (none).
        seed: every generator is seeded with it as the watch begins (`finitude.seed_all`; none).
        quiet: True: nothing on stderr but alarms and failures (False).
        redact: True: reports and capsules hold no values, sources or environment (False).
        rules: files with rules of your own (finitude.rule), separated as in PATH, or a list of them (none).
        tensors: names and further tensors to look at in each step, such as averages in plain attributes: each is
            treated as a persistent buffer, so NaN in it is an alarm. A function is called before each step
            instead, and NaN in what it returns is an advisory. On a device none is looked at (none).

    Returns:
        A Watch. Under `finitude run`, or where another watch is on (`%load_ext finitude` begins one), a handle to that
        one: its options stay, `close()` leaves it on, and options that differ are named on stderr (not under
        `finitude run`, where the command line wins).

    Raises:
        TypeError: for a keyword that is not listed here; the message names the nearest one.
        finitude.base.config.UsageError: for a value that an option does not take.
        NonFiniteError: not from here, but from `optimizer.step()`, for a bad step that stops the program.
    """
    given = {
        "on_alarm": "skip" if callable(on_alarm) else on_alarm,
        "level": level,
        "tape_every": tape_every,
        "replicas_every": replicas_every,
        "signals_together": signals_together,
        "verify": verify,
        "guard_memory": guard_memory,
        "report": report,
        "runs": runs,
        "max_skips": max_skips,
        "max_bad": max_bad,
        "max_bad_share": max_bad_share,
        "then": then,
        "cool_down": cool_down,
        "undo_mb": undo_mb,
        "rollback_every": rollback_every,
        "rollback_mb": rollback_mb,
        "rollback_lr": rollback_lr,
        "rollback_skip_rows": rollback_skip_rows,
        "lower_rate_factor": lower_rate_factor,
        "skip_rows": skip_rows,
        "restart_args": restart_args,
        "capsules": capsules,
        "capsule_max": capsule_max,
        "capsule_of_step": capsule_of_step,
        "experiments": experiments,
        "stream_gradients": stream_gradients,
        "warnings": warnings,
        "grad_warn": grad_warn,
        "checkpoints": checkpoints,
        "on_event": None if callable(on_event) else on_event,
        "dump": dump,
        "dump_steps": dump_steps,
        "dump_only": dump_only,
        "dump_mb": dump_mb,
        "dump_control": dump_control,
        "golden": golden,
        "record_env": record_env,
        "seed": seed,
        "redact": redact,
        "quiet": quiet,
        "rules": rules,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if tensors is not None:
        watched_tensors.check(tensors)
    child.begin()  # in a process that a watched program started
    if native_callbacks.session is not None:
        session, owner = native_callbacks.session, False
        if options and session.start is None:
            _name_unused(session.config, options)
    else:
        global _begun
        program, settings = _program(), config.load(options)
        dump_shortfall.refuse(settings, model)
        session, owner = Session(settings, program, sys.orig_argv if program else ()), True
        if session.config.seed:
            seeding.seed_all(int(session.config.seed))
        if _begun is None:
            atexit.register(_end)
        if callable(on_alarm):
            session.chosen_action = chosen_action.ChosenAction(on_alarm, session.report)
        native_callbacks.session = _begun = session
        _native.reset()
        _native.hand_reset()
        install.install(child.wait_for_training)
        session.attach_notebook()
        if session.config.level == "trace":
            _native.set_trace_level(True)
            _native.trace_start()
        session.first_step.may_come(model is not None and not optimizer)
    if callable(on_event):
        session.report.listen(on_event)
    if tensors and session.watched_tensors.add(tensors):
        install.call_before_steps(watched_tensors.before_step)
    if isinstance(model, torch.nn.Module):
        _native.watch_buffers(list(model.buffers()))
    optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
    for one in optimizers:
        session.on_created(one)
    return Watch(session, owner)


def _program() -> str:
    """The file of the program; "" for a notebook, a prompt, or a program of a package."""
    file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    path = os.path.abspath(file) if file else ""
    return path if os.path.isfile(path) and SITE not in path else ""


def _name_unused(now: Config, options: dict[str, Any]) -> None:
    """Of a watch that is on since before, with the settings `now`."""
    wanted = config.load(options)
    if unused := [f"{key}={value!r}" for key, value in options.items() if getattr(now, key) != getattr(wanted, key)]:
        words = ", ".join(unused)
        say(f"finitude: already watching, and not with {words}: close that watch first (%unload_ext finitude)\n")


def step(closure: Callable[[], R]) -> R:
    """Runs one training step given as a closure and returns what it returns; a bad step is then run again by calling
    the closure once more.

    With an optimizer, in the closure or behind it, the closure is part of the step that the optimizer takes. Without
    one the closure is the step, with the writes to the parameters in it. Where nothing is watched it is only called.

    Raises:
        NonFiniteError: for a bad step, as the option on_alarm of `watch` says; and whatever the closure raises.
    """
    session = native_callbacks.session
    if session is None:
        return closure()
    return session.units.call(closure) if _native.counters()["optimizers"] else session.hand.run(closure)


def save(name: str, tensor: Tensor, *, gradient: bool = False, values: bool = False) -> Tensor:
    """Keeps the statistics of a tensor under a name for the report of an alarm in this step.

    Args:
        name: how the report calls it. A second tensor of that name in a step replaces the first.
        tensor: of any shape and dtype. It is read at once, on a GPU after a wait for what computes it.
        gradient: also that of the gradient of the tensor, as `name`.grad, where it requires one.
        values: also the values, copied at once. An alarm writes them to a safetensors file in the folder of the run
            (`saved_values` in its report), at most 256 MB a step, and none with the option redact.

    Returns:
        The tensor.
    """
    if native_callbacks.session is not None:
        native_callbacks.session.saved.add(name, tensor, gradient, values)
    return tensor


def metrics() -> dict[str, Any]:
    """The newest values of the running training, for a logger of the program's own: {"step", "loss",
    "gradient_absmax", "learning_rate", "gradient_norm", "headroom_bits", "gradient_growth", "warnings", "alarms",
    "skips"}; {} where nothing is watched.

    Of several optimizers those of the one with the most steps. step: that of the last applied step, counted from 0;
    None before it. gradient_norm: the 2-norm of all gradients in float64, before clipping where clip_grad_norm_
    computed it; None on a GPU without clipping. headroom_bits: from the largest gradient to the largest number of the
    narrowest dtype among the gradients. gradient_growth: how many times the median of the first 16 steps the largest
    gradient is. skips: steps that a GradScaler skipped, and windows that the script dropped. A value that is not
    known is None. Reads up to 4096 records: meant for each logged step, not for an inner loop. A step on a GPU may be
    missing until its verdict has come.
    """
    session = native_callbacks.session
    if session is None:
        return {}
    counters = _native.counters()
    ordinals = [row[0] for row in _native.open_drops()]  # of this watch: those of an earlier one are others
    known = ((found[-1], ordinal) for ordinal in ordinals if (found := _native.ring_steps(ordinal)))
    newest, of = max(known, key=lambda one: one[0][0], default=((None,) * 4, -1))
    figures = _native.step_figures(of, newest[2]) if newest[2] is not None else (math.nan,) * 3
    return {
        **dict(zip(("step", "loss", "gradient_absmax", "learning_rate"), newest)),
        **{key: None if math.isnan(value) else value for key, value in zip(_FIGURES, figures)},
        "warnings": len(session.report.warnings),
        "alarms": len(session.report.alarms) + session.report.alarms_left_out,
        "skips": counters["scaler_skips"] + counters["handled_by_script"],
    }


_FIGURES = ("gradient_norm", "headroom_bits", "gradient_growth")  # of _native.step_figures


@_with_nearest
def allow(module: str | None = None, op: str | None = None, tensor: Tensor | None = None, reason: str = "") -> None:
    """Non-finite values born there are intended: no alarm. An allowance that was never used is listed at the end.

    Args:
        module: qualified name of the module that computes them, e.g. "encoder.mask".
        op: name of the operator, e.g. "aten::log". With `module`: that operator in that module.
        tensor: one whose present values are intended.
        reason: for whoever reads the report. Required.

    Raises:
        ValueError: without module, op and tensor, or without a reason.
        TypeError: for another keyword; the message names the nearest one.
    """
    if module is None and op is None and tensor is None:
        raise ValueError("allow needs module=, op= or tensor=")
    if not reason:
        raise ValueError("allow needs a reason= for whoever reads the report")
    if native_callbacks.session is None:
        return
    if tensor is not None:
        native_callbacks.session.allowed.add_tensor(tensor)
    else:
        native_callbacks.session.allowed.add_part(allowed.Allowance(module, op, reason))
