"""What is done about a bad step: it is explained, reported, and the policy carried out. Each part has its own guard
(Failures.part): an internal failure costs that part, never the decision."""

from __future__ import annotations

import json
import os

from .. import _native
from ..alarms import nonfinite_weights
from ..base import control
from ..errors import NonFiniteError
from ..program import batch_source, optimizer_members, ranks, sinks as sinks_of
from ..report import console, impossible_state, incident
from ..rerun import ladder, rank_births, rank_vote, traced
from ..rerun.way import BadStep, Way, climb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._native import Known
    from ..base.types import Alarm, Config, Optimizer, Parts, Sink, Tensor, Verdict, Where
    from ..program.grad_scaler import Scaling
    from ..report.new_alarms import Damage


class Decision:
    """Carries the policy out at each alarm."""

    def __init__(self, session: Parts):
        self._session = session

    def act(
        self,
        optimizer: Optimizer,
        alarm: Alarm,
        sinks: Sequence[Sink],
        where: Where = "window",
        undone: bool = False,
        rerun_wanted: bool = True,
        loss: Tensor | None = None,
        ways: Sequence[Way] = ladder.ALL,
    ) -> Verdict:
        """Explains the alarm and carries out the policy. True: veto. "again": the window runs a second time. None:
        apply.

        where the bad value is (base/records.py). undone: what the step wrote has been put back. loss: the bad one that
        a search began with. ways: to explain it; none: it is not run again."""
        session = self._session
        session.acting.begin(alarm, where == "written", undone)
        others_vote = session.agreement.owed is not None and session.part(session.agreement.say, optimizer, alarm)
        # With several ranks each asks, also one without the file: another one may have it already.
        is_asked = session.report.directory and os.path.exists(os.path.join(session.report.directory, control.NAME))
        if is_asked or session.part(ranks.several):
            ordinal = alarm.get("optimizer_ordinal", 0)
            call = alarm["step"] + session.scaling.skipped[ordinal]
            if (policy := session.part(session.control.new_policy, ordinal, call)) is not None:
                session.policy = policy
                session.second_runs.begin_with(session.config.on_alarm)
        if (session.report.unexplained or session.second_run.pending or session.hand.again) is not None:
            session.part(session.ending.unexplained, "the program continued")
        session.part(session.report.begin, alarm)
        session.part(session.recent.note_bad, alarm, sinks)
        is_traced = session.config.on_alarm != "raise" and traced.is_possible(session.config.level, where)
        may_run = rerun_wanted and where == "window" and bool(ways)
        may_vote = (may_run or others_vote) and session.config.level == "gate" and session.part(ranks.several)
        vote = session.part(session.ballot.vote_on, optimizer, alarm) if may_vote else None
        if vote is not session.second_run.vote:
            session.second_run.join(vote)
        if vote and not may_run:
            session.part(vote.cast, "it cannot run this step again in place")
            vote = None
        kind = "gradient" if vote else alarm["sink"]["kind"]  # ranks in one alarm count alike
        if rerun_wanted and ways and session.part(session.recent.runs_again, alarm, kind, where, is_traced, vote):
            found_at = alarm["step"]
            step = BadStep(session, optimizer, alarm, sinks, where, undone, loss, vote)
            is_guarded = bool(session.config.guard_memory) and session.restart.is_possible()
            outcome = session.part(climb, ladder.GUARDED if is_guarded else ways, step, session.part)
            if outcome is not None and outcome.runs_again:
                return "again"  # second_run_ended continues from here
            if is_traced and session.config.level == "trace" and session.part(ranks.on_several_machines):
                vote = session.part(session.ballot.of_recorded, optimizer, alarm)
                session.second_run.join(vote)
            if vote:
                session.part(rank_births.share, vote, alarm, session.report)
            if where == "start":
                incident.as_loaded_state(alarm)
                session.unwritten.asked(alarm)
            elif where == "earlier":
                nonfinite_weights.add_writer(alarm, found_at, outcome.found_in if outcome is not None else "")
        elif vote:
            vote.cast("it runs no more steps again")
        return self.conclude(optimizer, alarm, where in ("written", "search"), undone)

    def second_run_ended(self, optimizer: Optimizer) -> Verdict:
        """A rewind has come to a step. What it shows goes into its alarm; the next way, or the policy, has its turn."""
        session = self._session
        alarm = session.second_run.take()
        session.second_run.join(alarm["vote"])
        session.acting.begin(alarm["alarm"])
        verdict = session.part(session.rewound.end, optimizer, alarm)
        _native.consume_losses(optimizer)
        if verdict == "again":
            return verdict
        if alarm["vote"]:
            session.part(rank_births.share, alarm["vote"], alarm["alarm"], session.report)
        if "advisory" in alarm["alarm"]:
            session.dropping.end(alarm["alarm"], verdict, alarm["optimizer"])
            return None if alarm["optimizer"] is optimizer else session.windows.judge(optimizer)
        if not session.traced.ended(alarm["alarm"], verdict):
            session.part(session.restart.run, alarm["alarm"], alarm["expected"])
        if (own := alarm["optimizer"]) is optimizer:
            return self.conclude(own, alarm["alarm"])
        session.rewound.note_elsewhere(alarm["alarm"], optimizer)
        _native.consume_losses(own)
        self.conclude(own, alarm["alarm"], lost=True)
        return session.windows.judge(optimizer)

    def conclude(
        self,
        optimizer: Optimizer,
        alarm: Alarm,
        written: bool = False,
        undone: bool = False,
        lost: bool = False,
    ) -> Verdict:
        """Nothing more is found out about the alarm: it is reported, and the policy carried out. written: by a step
        that was taken; undone: what it wrote has been put back; lost: the program is not at that step any more."""
        session = self._session
        ordinal = alarm.get("optimizer_ordinal", 0)
        session.acting.begin(alarm, written, undone)
        if session.agreement.owed is not None:
            session.part(session.agreement.say, optimizer, alarm)
        if session.damage or impossible_state.seen:
            session.part(session.weights.applied_before, optimizer, alarm)
        if alarm["rerun"] != "not-run":
            session.part(session.unwritten.explain, optimizer, alarm)
        session.part(self._add_weights, optimizer, alarm)
        session.part(self._note_onset, optimizer, alarm)
        if session.saved.is_used:
            session.part(session.saved.note, alarm, session.report.run_directory)
        recorded = session.second_run.is_recorded and session.second_run.take_recorded() and session.capsules.wanted()
        if session.allowed.is_any and session.part(session.allowed.covers, alarm):
            _native.tape_clear()
            session.report.forget_unexplained()
            session.report.advise(
                "allowed", alarm["step"], "non-finite values allowed by finitude.allow: " + alarm["text"]
            )
            return None
        if recorded:
            alarm["capsule"] = session.part(session.capsules.write, alarm, in_background=True)
        alarm.pop("optimizer_ordinal", None)
        session.part(session.recent.point_back, ordinal, alarm)
        session.part(session.recent.mark_reported, optimizer, alarm)
        session.part(_native.note_event_in_store, ordinal, alarm["step"], "alarm")
        session.report.add_alarm(alarm)
        call = alarm["step"] + session.scaling.skipped[ordinal]  # steps that a GradScaler skipped are in the row too
        if session.policy_state is not None:
            session.part(session.policy_state.continue_from_before, session.policy)
        action = session.policy.on_alarm(ordinal, call, alarm["harmless"])
        if session.chosen_action is not None:
            action = session.part(session.chosen_action.choose, alarm, action, otherwise=action)
        session.acting.note_action(action)
        lowers = action == "lower-rate" and optimizer is not None
        if action == "lower-rate":
            action = "skip"
        has_parted = session.second_run.vote is not None and session.second_run.vote.parted
        decided = (
            session.part(session.rollback.decide, optimizer, alarm, ordinal, written and not undone)
            if action == "rollback" and not has_parted
            else None
        )
        goes_back = decided == "back"
        if decided == "stop":
            action = "stop"
        elif goes_back:
            action = "skip"
        elif action == "rollback" and alarm["weights"] == "damaged":
            action = "stop"
            alarm["text"] += "; there is no copy to roll back to (--undo-mb)"
        elif action == "rollback":
            action = "skip"
        if lost and action == "warn":
            action = "skip"  # nothing is left that could be applied
        if has_parted:
            action = "stop"
        elif not written or undone:
            action = ranks.may_do_alone(
                action, alarm, lambda: session.ballot.all_see(optimizer, ordinal, alarm, undone)
            )
        if undone or action in ("warn", "skip") or "action" not in alarm:
            alarm["action"] = _native.action_text(action, applied=written, undone=undone)
        session.part(
            session.settled.complete,
            optimizer,
            alarm,
            ordinal,
            action,
            action != "warn" and (undone or not written),
            max(session.recent.repeats.row(ordinal), session.policy.in_a_row(ordinal)),
            session.policy.beyond(ordinal),
        )
        if lowers and action == "skip":
            session.part(session.lowered_rate.lower, optimizer, alarm, ordinal)
        if session.policy_state is not None:
            session.part(session.policy_state.write, session.policy, action in ("stop", "raise"))
        if goes_back and action == "skip":
            went = session.part(session.rollback.go_back, optimizer, alarm, ordinal, vetoed=not written)
            if not went and session.part(ranks.several):  # the others went
                action, alarm["action"] = "stop", "stopped"
        if action == "skip" and (goes_back or undone or not written):
            self._count("went_back" if goes_back else "skipped", "lowered_rates" if lowers else "")
        session.part(session.console.print_alarm, alarm, brief=alarm is session.recent.follower)
        for inner in _native.watched_inside(optimizer) if action != "warn" and not written else ():
            _native.close_window(inner)
        if action in ("stop", "raise"):
            if session.second_run.vote is not None:
                session.part(rank_vote.part, session.second_run.vote)
            session.part(session.recent.repeats.stopped)
            session.part(session.holds.release)
            if undone or not written:
                session.part(_native.put_back, batch_source.iterates_data)
            known = session.console.as_known(alarm)
            text = console.message(session.report, known, "; the step was undone" * undone)
            if not written:
                session.skipped.note(ordinal, alarm["step"], text)
            raise NonFiniteError(text, report=alarm)
        if written and not undone:
            return None
        if action == "skip":
            if not written:
                session.skipped.note(ordinal, alarm["step"])
            if goes_back:
                return True
            return session.part(session.skipped.continue_without, optimizer, alarm["step"], otherwise=True)
        session.part(session.holds.release)
        return None

    def _add_weights(self, optimizer: Optimizer, alarm: Alarm) -> None:
        """How far the weights have grown since the first step: that they are finite does not make them sound. Weights
        that too large updates made are not called clean however far they got."""
        by_rate = alarm["cause"]["class"] == "learning-rate"
        start = self._session.started_with.get(id(optimizer)) or {}
        params, names = optimizer_members.parameters(optimizer), optimizer_members.names(optimizer)
        alarm["growth"], _, words = _native.weights_growth(params, names, start, by_rate)
        if (words or by_rate) and alarm["weights"] == "clean":
            is_applied = alarm["policy"] == "warn" and not alarm["harmless"]  # which damages them
            alarm["text"] += f"; weights {'were' if is_applied else 'are'} finite" + (f" but {words}" if words else "")
        elif words:
            alarm["text"] += f"; weights are damaged, and {words}"

    def _note_onset(self, optimizer: Optimizer | None, alarm: Alarm) -> None:
        """Since which step the training was on its way to this one: loss or gradients that grew up to it, weights that
        were warned of, or a learning rate that had jumped (src/incident/onset.h)."""
        alarm["onset"] = None
        if optimizer is None:
            return
        steps = _native.ring_steps(_native.window(optimizer)["ordinal"])
        growths = json.dumps(_native.plain([w for w in self._session.report.warnings if w["what"] == "growth"]))
        alarm["onset"] = json.loads(_native.onset(steps, growths, type(optimizer).__name__, alarm["cause"]["class"]))

    def _count(self, *what: str) -> None:
        done = self._session.report.done
        for key in filter(None, what):
            done[key] = done.get(key, 0) + 1


class Settled:
    """What is said of an alarm once it is known what becomes of its step."""

    def __init__(self, config: Config, scaling: Scaling, damage: Damage, known: Known):
        """known: bad tensors of earlier alarms."""
        self._config, self._scaling, self._damage, self._known = config, scaling, damage, known

    def complete(
        self,
        optimizer: Optimizer | None,
        alarm: Alarm,
        ordinal: int,
        action: str,
        goes_back: bool,
        row: int,
        beyond: str,
    ) -> None:
        """goes_back: buffers are put back to where the step began. row: alarms of this optimizer in a row, with this
        one. beyond: the limit that was passed, or the policy that holds from here on, in words, or ""."""
        if action == "warn" and not alarm["harmless"]:
            if self._scaling.decides:
                alarm["action"] = "reported, skipped by the GradScaler"
            else:
                alarm["weights"] = "damaged"
                self._damage.mark_applied(ordinal, alarm["step"])
        elif goes_back and alarm["sink"]["kind"] == "state" and alarm["step"] == 0:
            alarm["weights"] = "clean"  # only what the optimizer was given is bad: parameters are looked at first
        most = self._config.max_skips
        if beyond:
            alarm["text"] += f"; {beyond}"
        elif (
            action in ("stop", "raise")
            and row > most
            and (alarm["harmless"] or self._config.on_alarm in ("skip", "rollback"))
        ):
            alarm["text"] += f"; bad steps in a row: {row}, and --max-skips lets {most} pass"
        _buffers(optimizer, alarm, goes_back)
        _left(alarm, self._known.left_by(ordinal, alarm["step"]))


def _buffers(optimizer, alarm, goes_back):
    """Persistent buffers that the step has spoiled, as running statistics: are they what they were before it?"""
    bad = [] if optimizer is None else sinks_of.bad_buffers(optimizer)
    if not bad:
        return
    found = [(name, tensor, s) for _, name, tensor in bad if (s := _native.statistics(tensor)) is not None]
    if goes_back:
        _native.put_back(batch_source.iterates_data)
    alarm["buffers"] = [
        {
            "name": name,
            "nan": s["nan"],
            "inf": s["inf"],
            "numel": s["numel"],
            "put_back": not (now["nan"] or now["inf"] and s["inf"]),
        }
        for name, tensor, s in found
        for now in [_native.statistics(tensor) or s]
    ]


def _left(alarm, left):
    """The same of what lies in places that each step re-binds, such as an average in an attribute: what was there
    before is gone."""
    buffers = alarm.setdefault("buffers", [])
    for one in left:
        for tensor in one.tensors:
            s = _native.statistics(tensor)
            if s and (s["nan"] or s["inf"]) and all(b["name"] != one.name for b in buffers):
                buffers.append({"name": one.name, **{k: s[k] for k in ("nan", "inf", "numel")}, "put_back": False})
    if not buffers:
        del alarm["buffers"]
