"""One watched run: decides on each rare event what it is (CONTRACTS section 2) and what is done about it."""

from __future__ import annotations

import contextlib
import os

from .. import _native
from ..base import HOME
from ..base.plain_json import number
from ..base.say import say
from ..capsules import capsule
from ..errors import NonFiniteError
from ..findings import clipped_away, findings, growth, kept_step, story, unwatched
from ..findings.report import Report
from ..program import discover, guard, intake, makers, ranks, rehearsal, ruined, scaling, sinks as sinks_of, streams
from ..program.counts import count_text
from ..second_run import (
    budgets,
    damage,
    dropped,
    first_step,
    ladder,
    late,
    recall,
    restart,
    rewind,
    rewound,
    shared,
    tape,
    together,
    traced,
    unwritten as by_memory,
)
from ..second_run.shared import Told
from ..second_run.under_way import SecondRun
from ..second_run.way import BadStep, climb
from . import allowed, at_start, byhand, drops, ends, failures, minimal, settled
from .hold import Holds
from .teller import Teller
from .units import Units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..base.types import Alarm, AnyTarget, Birth, Config, Optimizer, Sink, Tensor, Verdict


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
        """target: in a second process, the step it is to explain. start: how the program was started (started.Start),
        for starting it again. is_member: one of several processes of a run, and whoever merges them has the last
        word."""
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
        self.told, self.unwritten = Told(), by_memory.Unwritten()
        self.makers = makers.Makers()
        self.units = Units(self)
        self.hand = byhand.ByHand(self)  # of a program without an optimizer
        self.policy = _native.PolicyMachine(config.on_alarm, config.max_skips)
        self.second_runs = _native.SecondRuns(config.on_alarm)
        self.scaling = scaling.Scaling()
        self.capsules = capsule.BeingWritten()
        self.second_run = SecondRun()
        self.traced = traced.Traced()
        self.tape_level = tape.TapeLevel()
        self.allowed, self.saved = allowed.Allowed(), {}
        self.generators = []  # the program's own, part of every snapshot
        self.draws, self.first_step, self.drops = intake.Draws(), first_step.FirstStep(self), drops.Drops(self)
        self.dropping = dropped.Dropping()
        self.damaged = damage.Damaged()
        self.started_with = {}  # id(optimizer) -> magnitudes of its parameters before its first step
        self.ring_open = False
        self.pid = os.getpid()
        budgets.set_budgets(config, target is not None)
        findings.load_rules(config)
        _native.set_device_policy(config.on_alarm)
        kept_step.begin(self)
        self.device_library = late.open_library(HOME)
        self.ending = ends.Ending()
        self.done = self.written = False

    on_kept, on_left_bad = kept_step.name, dropped.backward_ended
    on_bad_backward, on_dropped, on_asked_row = drops.begins, drops.grown, drops.asked

    # -- what the engine tells ------------------------------------------------------------------

    def on_created(self, optimizer: Optimizer) -> None:
        self._register(optimizer)
        self.first_step.made()

    def _register(self, optimizer):
        guard.register(optimizer)
        late.register(self, optimizer)
        self.tape_level.begin(self)
        from . import install

        install.watch_numpy()
        install.watch_frameworks()
        install.watch_queues()
        found = [b for _, b in discover.buffers(optimizer)]
        _native.watch_buffers(found)
        self.units.watch_buffers(found)
        ordinal = _native.window(optimizer)["ordinal"]
        if self.makers.note(ordinal) and self.target is not None:
            self.target.was_made(self, ordinal)

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
        self.started_with[id(optimizer)] = discover.magnitudes(optimizer)
        ruined.note_frozen(optimizer)
        _native.note_modules(optimizer, discover.roots(optimizer))
        bad = at_start.bad(optimizer, self.allowed.tensors)
        self._watch_streams(optimizer)
        self._register(optimizer)  # again: groups may have been added since it was made
        self.on_kept(optimizer)
        if self.target is not None:
            return self.target.begins(self, optimizer, bad)
        if not bad:
            return None
        kind, name, tensor = bad
        alarm = at_start.alarm(self, optimizer, kind, name, tensor)
        _native.consume_losses(optimizer)
        return at_start.decided(self, optimizer, self.act(optimizer, alarm, [(kind, name, tensor)], where="start"))

    def on_stream_met(self, _: Any) -> None:
        """A generator stands in a name of the user's frames that did not before."""
        self._watch_streams()

    def _watch_streams(self, optimizer=None):
        self.generators = streams.watch(self.generators, optimizer)

    def on_backward(self, roots):
        if not dropped.backward_begins(self):
            self.holds.backward_begins(roots, self.told.known)

    def on_hand_begin(self, roots, inputs, to_leaves):
        """An engine call of a program that has no optimizer."""
        return self.hand.begin(roots, inputs or (), to_leaves)

    def on_hand_end(self, result):
        return self.hand.end(result)

    def on_scaler_skip(self, optimizer: Optimizer) -> None:
        recall.leave_at(self, optimizer)
        scaling.skipped_once(self, optimizer)

    def on_scaler_step(self, optimizer, scaler, skipped):
        """GradScaler.step with a bad unscaled loss, which alarms at once (True: leave the call out), or that
        skipped."""
        recall.leave_at(self, optimizer)
        return scaling.on_step(self, optimizer, scaler, skipped)

    def on_window(self, optimizer: Optimizer) -> Verdict:
        """Something in the window before `step` is not finite. True: veto. None: apply. May raise NonFiniteError."""
        recall.leave_at(self, optimizer)
        checked = _native.dropped_checks()
        if self.target is not None:
            return self.target.on_window(self, optimizer, checked)
        if self.second_run.pending is not None:
            passed = rewind.passes(self.second_run.pending, optimizer)
            if passed == "left out":
                _native.put_back(intake.iterates_data())
            return {"applied": None, "left out": True}[passed] if passed else self._second_run_ended(optimizer)
        self.part(self.draws.note)
        window = _native.window(optimizer)
        if (told := at_start.told(optimizer, window["step"])) is not None:
            return told[0]
        verdict = _native.window_verdict(optimizer, False)
        self.part(dropped.tell_checked, self, checked)
        self.part(dropped.tell_norms, self, optimizer, window["step"])
        if (verdict["kind"] == "alarm" or window["written_bad"]) and window["ordinal"] not in self.damaged:
            if found := ruined.sinks(self, optimizer):
                return damage.found_late(self, optimizer, window, found)
        if verdict["norm_overflow"]:
            clipped_away.tell(self, optimizer, window["step"], window)
        if verdict["kind"] != "alarm" and _native.buffers_turned_nan():
            if found := sinks_of.bad_buffers(optimizer):
                alarm = self.new_alarm(optimizer, "buffer", found[0][1])
                alarm["text"] = (
                    f"the buffer {found[0][1]} took in {count_text(found[0][2])}; loss and gradients are finite"
                )
                return self.act(optimizer, alarm, found)
        if verdict["kind"] == "nothing":
            if window["vanished"]:
                damage.look_for_swallowed(self, optimizer, window)
            return "again" if checked and not window["on_device"] and dropped.begin(self, optimizer, window) else None
        if verdict["kind"] == "handled-by-script":
            dropped.tell(self, window["step"], dropped.GRADIENTS, verdict["times"])
            if not window["on_device"] and dropped.begin(self, optimizer, window):
                return "again"
            _native.consume_losses(optimizer)
            return None
        return self._on_bad_window(optimizer, window, verdict)

    def _on_bad_window(self, optimizer, window, verdict):
        if (inside := _native.backward_under_way()) and inside == self.damaged.applied_in:
            self.damaged.mark(window["ordinal"])  # one backward is one alarm, however many optimizers step inside it
            return _native.consume_losses(optimizer)
        bad = [i for i, m in enumerate(window["marks"]) if m >= sinks_of.BAD]
        losses = [loss for loss in window["losses"] if loss["bad"] and loss["owned"]]
        names = discover.names(optimizer)
        params = discover.parameters(optimizer)
        sinks = [("gradient", names[i], g) for i in bad if (g := params[i].grad) is not None]
        name = "loss" if losses else "grad_output" if verdict["is_grad_output"] else names[bad[0]]
        alarm = self.new_alarm(optimizer, verdict["sink"], name)
        # Inside backward the gradients to come are not known yet.
        alarm["harmless"] = verdict["harmless"] and not inside and window["ordinal"] not in self.damaged
        alarm["micro_batch"] = verdict["micro_batch"]
        alarm["loss"] = number(float(window["losses"][-1]["value"])) if window["losses"] else None
        alarm["gradients"] = {
            "bad": [
                {"name": n, **{k: s[k] for k in ("nan", "inf", "numel")}}
                for _, n, g in sinks[:64]
                if (s := _native.statistics(g)) is not None
            ],
            "clean": sum(1 for m in window["marks"] if m == 1),
        }
        value = (
            f"loss is {'NaN' if losses[0]['value'] != losses[0]['value'] else 'Inf'}"
            if losses
            else f"gradient of {name} is not finite"
        )
        alarm["text"] = value + (growth.beside_bad_loss(self, optimizer) if alarm["harmless"] else "")
        _native.consume_losses(optimizer)
        if not losses and not window["on_device"] and self.told.take_over(optimizer, alarm):
            return self._conclude(optimizer, alarm)
        return self.act(optimizer, alarm, sinks)

    def on_written(self, optimizer: Optimizer) -> Verdict:
        """The optimizer's own arithmetic wrote a non-finite parameter or state."""
        return damage.just_written(self, optimizer)

    leave_out, on_late = staticmethod(guard.leave_out), late.told  # late: of an earlier step, that nobody waited for

    def on_armed(self, optimizer: Optimizer) -> None:
        self.target.on_armed(optimizer)  # type: ignore[union-attr]  # nothing is armed without one

    def on_searched(self, search: Any) -> None:
        """A step that searched along a line is over."""
        search.judge()

    def on_closure(self, optimizer, args, kwargs):
        from . import closures

        return closures.wrap(self, optimizer, args, kwargs)

    on_unit_raised, on_backward_raised = recall.raised, drops.raised

    # -- what is done about it ------------------------------------------------------------------

    def new_alarm(self, optimizer: Optimizer, kind: str, name: str, step: int | None = None) -> Alarm:
        self.scaling.look_for(optimizer)
        window = _native.window(optimizer)
        if window["ordinal"] in self.damaged and not ruined.sinks(self, optimizer):
            self.damaged.clear(window["ordinal"])
        return self.alarm_of(
            type(optimizer).__name__, window["ordinal"], window["step"] if step is None else step, kind, name
        )

    def alarm_of(self, optimizer: str, ordinal: int, step: int, kind: str, name: str) -> Alarm:
        weights = "damaged" if ordinal in self.damaged else "clean"
        return findings.new_alarm(self.config, optimizer, ordinal, step, (kind, name), weights)

    def advise(
        self, kind: str, step: int, text: str, cause: dict[str, Any] | None = None, births: Iterable[Birth] = ()
    ) -> None:
        if sum(a["kind"] == kind for a in self.report.advisories) < 20:
            self.report.advisories.append(
                {"kind": kind, "step": step, "text": text, "births": list(births), "cause": cause}
            )

    def act(
        self,
        optimizer: Optimizer,
        alarm: Alarm,
        sinks: Sequence[Sink],
        where: str = "window",
        undone: bool = False,
        rerun_wanted: bool = True,
        loss: Tensor | None = None,
    ) -> Verdict:
        """Explains the alarm and carries out the policy. True: veto. "again": the window runs a second time. None:
        apply.

        where the bad value is: "window", open at `step`; "skipped", the same of one that a GradScaler has left out;
        "written" by the step just taken; made by a "search" along a line; "earlier", by an unknown step; there at the
        "start". undone: what the step wrote has been put back. loss: the bad one that a search began with."""
        self.acting.begin(alarm, where == "written", undone)
        self.part(ends.begin, self, alarm)
        self.part(self.told.note_bad, sinks)
        is_traced = traced.is_possible(self, where)
        vote = (
            self.part(together.vote_on, self, optimizer, alarm)
            if rerun_wanted and where == "window" and self.config.level == "gate"
            else None
        )
        kind = "gradient" if vote else alarm["sink"]["kind"]  # ranks in one alarm count alike
        if rerun_wanted and self.part(shared.runs_again, self, alarm, kind, where, is_traced, vote):
            found_at = alarm["step"]
            step = BadStep(self, optimizer, alarm, sinks, where, undone, loss, vote)
            outcome = self.part(climb, ladder.ALL, step, self.part)
            if outcome is not None and outcome.runs_again:
                return "again"  # _second_run_ended goes on from here
            if where == "start":
                findings.as_loaded_state(alarm)
                self.unwritten.asked(alarm)
            elif where == "earlier":
                damage.tell_writer(alarm, found_at, outcome.found_in if outcome is not None else "")
        elif vote:
            vote.cast("it runs no more steps again")
        return self._conclude(optimizer, alarm, where in ("written", "search"), undone)

    def _second_run_ended(self, optimizer):
        alarm = self.second_run.take()
        self.second_run.join(alarm["vote"])
        self.acting.begin(alarm["alarm"])
        verdict = self.part(rewound.end, self, optimizer, alarm)
        _native.consume_losses(optimizer)
        if verdict == "again":
            return verdict
        if "advisory" in alarm["alarm"]:
            dropped.end(self, alarm["alarm"], verdict, alarm["optimizer"])
            return None if alarm["optimizer"] is optimizer else self.on_window(optimizer)
        if not self.traced.ended(self, alarm["alarm"], verdict):
            self.part(restart.run, self, alarm["alarm"], alarm["expected"])
        if (own := alarm["optimizer"]) is optimizer:
            return self._conclude(own, alarm["alarm"])
        alarm["alarm"]["rerun_text"] += (
            f"; the program goes on at a step of {type(optimizer).__name__} that the first run did not take"
        )
        _native.consume_losses(own)
        self._conclude(own, alarm["alarm"], lost=True)
        return self.on_window(optimizer)

    def _conclude(self, optimizer, alarm, written=False, undone=False, lost=False):
        """lost: the program is not at that step any more."""
        ordinal = alarm.get("optimizer_ordinal", 0)
        self.acting.begin(alarm, written, undone)
        self.part(damage.applied_before, self, optimizer, alarm)
        self.part(self.unwritten.tell, self, optimizer, alarm)
        self.part(growth.tell_weights, self, optimizer, alarm)
        if self.saved:
            alarm["saved"] = dict(self.saved)
        recorded = self.second_run.take_recorded() and capsule.wanted(self)
        if self.part(self.allowed.covers, alarm):
            _native.tape_clear()
            self.report.unexplained = None
            self.advise("allowed", alarm["step"], "non-finite values allowed by finitude.allow: " + alarm["text"])
            return None
        if recorded:
            alarm["capsule"] = self.part(capsule.write, self, alarm, beside=True)
        alarm.pop("optimizer_ordinal", None)
        self.part(self.told.point_back, ordinal, alarm)
        self.part(self.told.tell, optimizer, alarm)
        self.report.add_alarm(alarm)
        call = alarm["step"] + self.scaling.skipped[ordinal]  # steps that a GradScaler left out are in the row too
        action = self.policy.on_alarm(ordinal, call, alarm["harmless"])
        self.acting.note_action(action)
        if action == "rollback" and alarm["weights"] == "damaged":
            action = "stop"
            alarm["text"] += "; there is no copy to roll back to (--undo-mb)"
        elif action == "rollback":
            action = "skip"
        if lost and action == "warn":
            action = "skip"  # nothing is left that could be applied
        if self.second_run.vote is not None and self.second_run.vote.parted:
            action = "stop"
        elif not written or undone:
            action = ranks.may_do_alone(
                action, alarm, lambda: together.all_see(self, optimizer, ordinal, alarm, undone)
            )
        skipped = (
            "the step was undone" if undone else "reported, the step is applied" if written else "the step was left out"
        )
        stopped = "the step was undone, stopped" if undone else alarm.get("action", "stopped")
        alarm["action"] = {"warn": "reported, the step is applied", "skip": skipped}.get(action, stopped)
        self.part(
            settled.tell,
            self,
            optimizer,
            alarm,
            ordinal,
            action,
            action != "warn" and (undone or not written),
            max(self.told.repeats.row(ordinal), self.policy.in_a_row(ordinal)),
        )
        self.part(self.teller.tell, alarm, brief=alarm is self.told.follower)
        for inner in guard.inside(optimizer) if action != "warn" and not written else ():
            _native.close_window(inner)
        if action in ("stop", "raise"):
            self.part(together.part, self.second_run.vote)
            self.part(self.told.repeats.stopped)
            self.part(self.holds.release)
            if undone or not written:
                self.part(lambda: _native.put_back(intake.iterates_data()))
            text = story.message(self.report, alarm, "; the step was undone" * undone)
            if not written:
                self.note_decided(ordinal, alarm["step"], text)
            raise NonFiniteError(text, report=alarm)
        if written and not undone:
            return None
        if action == "skip":
            if not written:
                self.note_decided(ordinal, alarm["step"])
            return self.part(self.go_on_without, optimizer, alarm["step"], otherwise=True)
        self.part(self.holds.release)
        return None

    def note_decided(self, ordinal: int, step: int, raised: str = "") -> None:
        """A step of that optimizer is left out. raised: what the program was given for it."""
        self.decided.append([ordinal, step, raised])

    def go_on_without(self, optimizer: Optimizer, step: int) -> bool:
        """Everything goes on as if the loop had said `continue` right after the batch of that step was fetched (see
        Draws)."""
        self.part(self.draws.left_out, optimizer, step)
        held = sinks_of.watched_optimizers() if _native.backward_under_way() else discover.sharing(optimizer)
        self.holds.leave_out(held, step, self.scaling.scaler)
        return True

    # -- the end --------------------------------------------------------------------------------

    def program_raised(self, error: BaseException | None) -> None:
        if rehearsal.is_under_way():
            rehearsal.end(rehearsal.ASTRAY)
        ends.program_raised(self, error)

    def second_run_lost(self) -> NonFiniteError | None:
        if rehearsal.is_under_way():
            rehearsal.end(rehearsal.ASTRAY)
        return ends.second_run_lost(self)

    def begin_program(self) -> None:
        """A cell of a notebook begins: second runs are counted anew."""
        self.second_runs = _native.SecondRuns(self.config.on_alarm)

    def save(self, name: str, statistic: Any) -> None:
        """What the program wants to see in the report of an alarm in this step."""
        self.saved[name] = statistic

    def not_watched(self, what: str) -> None:
        if what not in self.report.not_watched:
            self.report.not_watched.append(what)

    def failed(self, why: str) -> None:
        self.report.failure, self.report.unexplained = why, None

    def forked(self) -> None:
        self.done = self.written = True

    def end(self, why: str = "the program ended") -> None:
        """Writes the reports and the closing line. Once."""
        if rehearsal.is_under_way():
            rehearsal.end(rehearsal.ASTRAY)
        if self.done:
            if not self.written:  # ended by a signal while it was at it
                self.write()
            return
        self.done = True
        self.part(ends.unexplained, self, why)
        self.part(self.holds.release)
        self.part(self.ending.call_all, self)
        if self.target is not None:
            self.target.program_ended(self, None)
            return
        self.part(ends.finish, self)
        self.part(self.tape_level.end, self)
        self.part(lambda: drops.at_end(self, self.hand.finish()))
        self.part(unwatched.at_end, self)
        if self.config.level == "trace" and self.report.trace_ops is None:
            self.report.trace_ops = self.part(kept_step.ops, self.report)
        self.write()

    def write(self) -> None:
        self.written = True
        self.part(capsule.finish, self, self.ending.is_hurried)
        if self.member and not self.part(self.report.worth_writing, otherwise=True):
            return
        written = self.part(self.report.write)
        if written is None:
            written = minimal.write_report(self)
        if not self.member:
            with contextlib.suppress(KeyboardInterrupt):  # the program has ended: its exit code stands
                say(self.part(self.report.closing_line, written, otherwise=minimal.CLOSING) + "\n")
