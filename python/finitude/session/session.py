"""One watched run: decides on each rare event what it is, as docs/contract.md says under "When a step is an alarm", and
what is done about it."""

from __future__ import annotations

import os

from .. import _native
from ..alarms import (
    deferred_verdict,
    initial_state,
    nonfinite_weights,
    scaler_skips,
    script_handled,
    unwritten_memory as by_memory,
)
from ..capsules import capsule
from ..effects import notebook_cells
from ..program import (
    batch_source,
    grad_scaler,
    nonfinite_state,
    optimizer_members,
    optimizer_threads,
    rng_generators,
    sinks as sinks_of,
    step_start_state,
    step_wrapper,
)
from ..report import incident, kept_step
from ..report.document import Report
from ..rerun import budgets, call_again, first_step, rank_vote, tape, traced
from ..rerun.alarm_correlation import Told
from ..rerun.restart import Restart
from ..rerun.rewound import Rewound
from ..rerun.under_way import SecondRun
from . import (
    allowed,
    closures,
    decision,
    dropped_rows,
    failures,
    functional,
    manual_updates,
    minimal,
    program_exit,
    refused,
    windows,
)
from .console import Teller
from .scheduler_hold import Holds
from .step_calls import Units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..base.types import Alarm, AnyTarget, Birth, Cause, Config, Optimizer, SinkKind, StartMagnitudes, Weights


class Session:
    def __init__(
        self,
        config: Config,
        script: str = "",
        command: Sequence[str] = (),
        target: AnyTarget | None = None,
        start: Any = None,
        is_member: bool = False,
    ):
        """target: in a second process, the step it is to explain. start: how the program was started
        (launch_command.Start), for starting it again. is_member: one of several processes of a run, and whoever merges
        them has the last word."""
        self.config = config
        self.report = Report(config, script, command, is_kept=target is None)
        self.teller = Teller(self.report)
        self.acting = minimal.ActedOn()
        self.debug = bool(os.environ.get("FINITUDE_DEBUG"))
        self.failures = failures.Failures(self.report, self.debug)
        self.part = self.failures.part
        self.decided = []  # [optimizer's number, step, what was raised or ""] of steps that were left out
        self.target, self.start, self.member = target, start, is_member
        self.holds = Holds()
        self.told, self.unwritten = Told(self), by_memory.Unwritten(self)
        self.makers = optimizer_threads.Makers()
        self.units = Units(self)
        self.unvetoed = functional.Unvetoed(self)
        self.hand = manual_updates.ByHand(self)  # of a program without an optimizer
        self.policy = _native.PolicyMachine(config.on_alarm, config.max_skips)
        self.second_runs = _native.SecondRuns(config.on_alarm)
        self.scaling = grad_scaler.Scaling()
        self.second_run = SecondRun()
        self.call_again, self.rewound, self.restart = call_again.CallAgain(self), Rewound(self), Restart(self)
        self.ballot = rank_vote.Ballot(self)
        self.traced = traced.Traced(self.report.add_not_watched)
        self.tape_level = tape.TapeLevel(config, target is not None, self.report.add_not_watched)
        self.allowed, self.saved = allowed.Allowed(), {}
        self.started_with: StartMagnitudes = {}
        self.generators = []  # the program's own, part of every snapshot
        self.step_start = step_start_state.Remembering(
            self.scaling, self.units.of_step, self.report.add_not_watched, self.debug
        )
        self.capsules = capsule.Capsules(config, self.report, self.step_start, self.teller.tell)
        self.analysis = incident.Analysis(
            config,
            self.scaling,
            self.started_with,
            self.allowed.tensors,
            self.told.known,
            lambda: self.second_run.is_without_tensor,
        )
        self.bad_windows = sinks_of.BadWindows(
            self.told.known, self.new_alarm, self.alarm_of, lambda: self.hand.is_damaged
        )
        self.draws, self.first_step, self.drops = (
            batch_source.Draws(),
            first_step.FirstStep(self),
            dropped_rows.Drops(self),
        )
        self.scaler_skips = scaler_skips.ScalerSkips(self)
        self.dropping = script_handled.Dropping(self)
        self.damaged = nonfinite_weights.Damaged(self)
        self.ring_open = False
        self.pid = os.getpid()
        budgets.set_budgets(config, target is not None)
        incident.load_rules(config)
        _native.set_device_policy(config.on_alarm)
        kept_step.begin(config.level, is_second_process=target is not None)
        self.initial_state = initial_state.InitialState(self)
        self.deferred = deferred_verdict.Deferred(self)
        self.decision = decision.Decision(self)
        self.windows = windows.Windows(self)
        self.closures = closures.Closures(self)
        self.refused = refused.RefusedValues(self)
        self.ending = program_exit.Ending(self)
        if target is not None:
            target.attach(self)

    on_kept = staticmethod(kept_step.name)

    # -- what the engine tells ------------------------------------------------------------------

    def on_created(self, optimizer: Optimizer) -> None:
        self._register(optimizer)
        self.first_step.made()

    def _register(self, optimizer):
        step_wrapper.register(optimizer)
        self.deferred.register(optimizer)
        self.tape_level.begin()
        from . import install

        install.watch_numpy()
        install.watch_frameworks()
        install.watch_queues()
        found = [b for _, b in optimizer_members.buffers(optimizer)]
        _native.watch_buffers(found)
        self.units.watch_buffers(found)
        ordinal = _native.window(optimizer)["ordinal"]
        if self.makers.note(ordinal) and self.target is not None:
            self.target.was_made(ordinal)

    def _open_ring(self):
        """The ring of steps, in the directory of the run: it tells the end of a run that was killed."""
        if self.ring_open:
            return
        self.ring_open = True
        directory = self.report.run_directory() if self.target is None else self.target.directory()
        _native.open_ring(self.report.ring_in(directory))

    def first_seen(self, optimizer):
        self._open_ring()
        _native.writes_seen()  # the program has an optimizer: nothing by hand is waited for
        if not _native.is_registered(optimizer):
            self._register(optimizer)
        self.started_with[id(optimizer)] = optimizer_members.magnitudes(optimizer)
        nonfinite_state.note_frozen(optimizer)
        _native.note_modules(optimizer, optimizer_members.roots(optimizer))
        bad = initial_state.bad(optimizer, self.allowed.tensors)
        self._watch_streams(optimizer)
        self._register(optimizer)  # again: groups may have been added since it was made
        self.on_kept(optimizer)
        if self.target is not None:
            return self.target.begins(optimizer, bad)
        if not bad:
            return None
        kind, name, tensor = bad
        alarm = self.initial_state.alarm(optimizer, kind, name, tensor)
        _native.consume_losses(optimizer)
        return self.initial_state.decided(
            optimizer, self.decision.act(optimizer, alarm, [(kind, name, tensor)], where="start")
        )

    def on_stream_met(self, _: Any) -> None:
        """A generator stands in a name of the user's frames that did not before."""
        self._watch_streams()

    def _watch_streams(self, optimizer=None):
        self.generators = rng_generators.watch(self.generators, optimizer)

    def on_backward(self, roots):
        if not self.dropping.backward_begins():
            self.holds.backward_begins(roots, self.told.known)

    def on_hand_begin(self, roots, inputs, to_leaves):
        """An engine call of a program that has no optimizer."""
        return self.hand.begin(roots, inputs or (), to_leaves)

    leave_out = staticmethod(step_wrapper.leave_out)

    # -- what is done about it ------------------------------------------------------------------

    def new_alarm(self, optimizer: Optimizer, kind: SinkKind, name: str, step: int | None = None) -> Alarm:
        self.scaling.look_for(optimizer)
        window = _native.window(optimizer)
        if window["ordinal"] in self.damaged and not nonfinite_state.sinks(optimizer, self.allowed.tensors):
            self.damaged.clear(window["ordinal"])
        return self.alarm_of(
            type(optimizer).__name__, window["ordinal"], window["step"] if step is None else step, kind, name
        )

    def alarm_of(self, optimizer: str, ordinal: int, step: int, kind: SinkKind, name: str) -> Alarm:
        weights: Weights = "damaged" if ordinal in self.damaged else "clean"
        return incident.new_alarm(self.config, optimizer, ordinal, step, (kind, name), weights)

    def advise(self, kind: str, step: int, text: str, cause: Cause | None = None, births: Iterable[Birth] = ()) -> None:
        self.report.advise(kind, step, text, cause, births)

    def note_decided(self, ordinal: int, step: int, raised: str = "") -> None:
        """A step of that optimizer is skipped. raised: what the program was given for it."""
        self.decided.append([ordinal, step, raised])

    def go_on_without(self, optimizer: Optimizer, step: int) -> bool:
        """Everything goes on as if the loop had said `continue` right after the batch of that step was fetched (see
        Draws)."""
        self.part(self.draws.left_out, optimizer, step)
        held = sinks_of.watched_optimizers() if _native.backward_under_way() else optimizer_members.sharing(optimizer)
        self.holds.leave_out(held, step, self.scaling.scaler)
        return True

    # -- what the program and its host ask for ---------------------------------------------------

    def attach_notebook(self) -> None:
        """In a notebook, reports are shown below the running cell, and each cell is a program of its own."""
        if notebook_cells.shell() is None:
            return
        self.teller.show = notebook_cells.show

        def new_cell(*_):
            self.second_runs = _native.SecondRuns(self.config.on_alarm)  # counted from zero
            self.first_step.may_come()

        self.ending.call_before(notebook_cells.before_each(new_cell))

    def save(self, name: str, statistic: Any) -> None:
        """What the program wants to see in the report of an alarm in this step."""
        self.saved[name] = statistic

    def failed(self, why: str) -> None:
        self.report.failure, self.report.unexplained = why, None
