"""Steps that the script drops itself, one after another: the run has stopped learning, and the script says nothing."""

from __future__ import annotations

import itertools

import torch

from .. import _native
from ..base.plain_json import number
from ..errors import NonFiniteError
from ..program import anomaly, frames_at_raise, optimizer_members, ranks, sinks as sinks_of
from ..report import console, incident
from ..rerun import ladder
from ..rerun.way import BadStep, climb
from . import script_handled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.types import Alarm, Fingerprint, Optimizer, Parts, Sink, SinkKind, Window

SCALER_ROW = 20  # steps that a search for a loss scale may take: src/decide/scaler.h
FALLS = 0.75  # a scale that comes down does so to a half, a fourth or a tenth


class Drops:
    def __init__(self, session: Parts):
        self.session = session
        self.begun = {}  # number of an optimizer -> step and fingerprint of the first bad window of the row
        self.caught = (-1, 0)  # after so many applied steps: backward passes that raised since
        _native.watch_drops(max(1, session.config.max_skips))

    def begins(self, optimizer: Optimizer) -> None:
        """A backward has left gradients that are not finite, and the one before did not."""
        session = self.session
        if session.second_run.pending is not None:
            return
        if session.target is not None:
            session.target.on_left_bad(optimizer)
            return
        window = _native.window(optimizer)
        ordinal, step = window["ordinal"], window["step"]
        row = next((r[3] for r in _native.open_drops() if r[0] == ordinal), 0)
        # A later backward of the row begins so too: the last of the micro-batches, or after some that were finite. A
        # second run ends at the first of the row.
        if ordinal not in self.begun or row == 0 and self.begun[ordinal][0] != step:
            self.begun[ordinal] = step, incident.fingerprint(optimizer)

    def grown(self, optimizer: Optimizer) -> bool | None:
        """A row is as long as --max-skips, and another backward has come. True: it has been reported. May raise
        NonFiniteError."""
        session, window = self.session, _native.window(optimizer)
        if session.target is not None or session.second_run.pending is not None:
            return None
        row, is_norm = next((r[3], r[5]) for r in _native.open_drops() if r[0] == window["ordinal"])
        sinks = [] if is_norm else sinks_of.of_optimizer(optimizer)
        if not is_norm and not sinks or row < SCALER_ROW and _is_search(window, row):
            return None
        step, expected = self.begun.pop(window["ordinal"], (window["step"], None))
        alarm = self._alarm(optimizer, window, step, row, is_norm, sinks)
        if session.config.on_alarm == "raise":
            incident.note_failed_way(alarm, "--on-alarm raise runs no step again")
        elif not is_norm:
            self._explain(optimizer, alarm, sinks, expected)
        return self._decide(optimizer, alarm)

    def asked(self, count: int, is_looked_at: bool) -> bool | None:
        """So many calls of autograd.grad or torch.func in a row gave gradients that were not finite, or were given such
        a loss, and no step followed; or, where is_looked_at, the script looked at the losses of so many steps, and no
        backward followed. True: it has been reported. May raise NonFiniteError."""
        session = self.session
        if session.second_run.pending is not None or not _native.waiting_checks():
            return None
        if session.target is not None:
            session.target.row_dropped()
            return None
        session.dropping.note_checked(_native.dropped_checks())
        if session.config.on_alarm != "warn":  # else they are counted once they are settled
            _native.add_handled(count if is_looked_at else len(_native.waiting_checks()))
        alarm = session.dropping.row_alarm(count)
        session.ending.begin_alarm(alarm)
        return self._decide(None, alarm)

    def raised(self, error: BaseException) -> None:
        """A backward pass has raised. Where that is about a value that is not finite, and the script has caught as many
        in a row as --max-skips, it is an alarm. May raise NonFiniteError."""
        self.session.dropping.backward_raised(error)
        session, applied = self.session, _native.counters()["steps"]
        if session.second_run.pending is not None:
            return
        if not isinstance(error, Exception) or isinstance(error, NonFiniteError):
            return
        if not (anomaly.found(error) or _native.pending_bad_losses() or frames_at_raise.is_about_values(error)):
            return
        self.caught = (applied, self.caught[1] + 1 if self.caught[0] == applied else 1)
        count = self.caught[1]
        if count != max(1, session.config.max_skips):
            return
        if session.target is not None:
            session.target.row_raised(error)
            return
        alarm = session.ending.of_exception(
            error,
            f"the script dropped {count} steps in a row by itself: it caught the {type(error).__name__} that backward "
            "raised; nothing has been learned meanwhile",
            "stopped",
        )
        if alarm is not None:
            self._decide(None, alarm)

    def _alarm(
        self, optimizer: Optimizer, window: Window, step: int, row: int, is_norm: bool, sinks: Sequence[Sink]
    ) -> Alarm:
        session = self.session
        losses = [loss for loss in window["losses"] if loss["bad"] and loss["owned"]]
        kind: SinkKind = "gradient"
        if losses:
            kind = name = "loss"
        elif sinks:
            kind, name, _ = sinks[0]
        else:
            name = optimizer_members.names(optimizer)[0]
        alarm = session.alarms.of(optimizer, kind, name, step=step)
        if losses:
            alarm["loss"] = number(float(losses[0]["value"]))
        what = (
            "loss was not finite" if losses else "gradient norm overflowed" if is_norm else "gradients were not finite"
        )
        alarm["text"] = script_handled.row_text(row, what, step)
        if is_norm:
            alarm["births"] = [incident.birth("backward", "aten::linalg_vector_norm", *window["norm_place"])]
            alarm["cause"] = incident.cause(
                "clipping", "the norm of finite gradients overflowed, and the script drops the step for that"
            )
        session.ending.begin_alarm(alarm)
        return alarm

    def _explain(self, optimizer: Optimizer, alarm: Alarm, sinks: Sequence[Sink], expected: Fingerprint | None) -> None:
        session = self.session
        if ranks.several():
            session.restart.run(
                alarm, expected or incident.fingerprint(optimizer), "dropped"
            )  # of all ranks, once they have ended
        elif not session.second_runs.left.take(
            alarm["sink"]["kind"],
            False,
            session.allowed.is_any,
            session.config.level == "trace",
        ):
            incident.note_failed_way(alarm, "no second run was tried any more")
        else:
            step = BadStep(session, optimizer, alarm, sinks, "dropped", expected=expected, is_dropped=True)
            climb(ladder.AFTERWARDS, step)
            session.second_run.take_recorded()  # a capsule of a dropped step is not written: the tape goes

    def _decide(self, optimizer: Optimizer | None, alarm: Alarm) -> bool:
        session = self.session
        session.report.forget_unexplained()
        if session.allowed.covers(alarm):
            session.report.advise(
                "allowed", alarm["step"], "non-finite values allowed by finitude.allow: " + alarm["text"]
            )
            return True
        continues = session.config.on_alarm == "warn"
        alarm["action"] = "reported, the script drops the step" if continues else "stopped"
        alarm.pop("optimizer_ordinal", None)
        session.report.add_alarm(alarm)
        session.console.print_alarm(alarm)
        if not continues:
            _native.consume_losses(optimizer)
            raise NonFiniteError(console.message(session.report, alarm), report=alarm)
        return True

    def _advise_zeros(self, name, first, count, is_zeroed):
        by = (
            "; backward left them finite and not zero, and the script set them to zero before the step, as clipping by "
            "a norm that overflowed does"
            if is_zeroed
            else ""
        )
        self.session.report.advise(
            "zero-gradients",
            first,
            f"every gradient of {name} was exactly zero in the last {count} steps, from step {first} on, though the "
            f"loss was not: nothing was learned{by}",
        )

    def at_end(self, is_reported: bool) -> None:
        """Counts what is dropped and no step reported; then, as what ended the program, what the last backward has
        left."""
        session = self.session
        limit, zero_rows = max(1, session.config.max_skips), _native.zero_rows()
        few = max((count for _, _, count, _ in zero_rows if count < limit), default=0)
        unapplied, by_scaler = _native.unapplied()
        session.report.note_last_steps(unapplied, by_scaler, few)
        for _, _, step, _, unreported, is_norm, _, ends_in_norm in _native.open_drops():
            is_norm, unreported = is_norm or ends_in_norm, unreported + ends_in_norm
            session.dropping.note(step, script_handled.NORM if is_norm else script_handled.GRADIENTS, unreported)
            is_reported = is_reported or unreported > 0
        for name, first, count, is_zeroed in zero_rows:
            if count >= limit:
                self._advise_zeros(name, first, count, is_zeroed)
        if (alarm := session.dropping.at_end(is_reported)) is not None:
            session.report.add_alarm(alarm)
            session.console.print_alarm(alarm)


def _is_search(window, row):
    """A scale is looked for: finite losses, gradients that overflow, a scale that is large enough to come down. Of a
    scaler of the program's own the scale is not known; but the weights stay as they are meanwhile, so what shrinks from
    one backward to the next is the scale."""
    if any(loss["bad"] for loss in window["losses"]):
        return False
    scaler = next((s for s in optimizer_members.instances(torch.amp.GradScaler) if s._enabled), None)
    if scaler is not None:
        return float(scaler.get_scale()) >= 1
    values = [abs(float(loss["value"])) for loss in window["losses"] if loss["owned"]][-row:]
    falls = sum(later < FALLS * earlier for earlier, later in itertools.pairwise(values))
    return len(values) > 2 and falls >= 0.8 * (len(values) - 1)
