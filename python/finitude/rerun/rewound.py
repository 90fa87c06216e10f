"""The second run of a rewind is over: it came back to the step and did what the first run did, or something else; or
the program ended within it."""

from __future__ import annotations

from .. import _native
from ..base import compat
from ..base.robust import in_any_case
from ..effects.files import not_put_back, written_twice
from ..program import optimizer_members, rng_generators, sinks as sinks_of
from ..report import carried_state, incident
from .alarm_correlation import trace_continues
from .rewind import OTHER_BITS, OTHER_NUMBERS, as_before_second_run, begin, give_up, same_bits
from .second_outcome import MEMORY_DIFFERS
from .way import BadStep, note_rerun, serves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, Findings, Optimizer, Parts, Pending, Rerun, Verdict


class Rewound:
    """Ends the second run that is under way in this process."""

    def __init__(self, session: Parts):
        self._session = session

    def end(self, optimizer: Optimizer, pending: Pending) -> Verdict:
        """The second run reached `step` again. True if it did what the first did, and the alarm now says why.
        "again": it did not, and another way is being tried."""
        try:
            return self._end(optimizer, pending)
        except BaseException:
            in_any_case(lambda: give_up(optimizer, pending), self._session.holds.release)
            raise

    def _end(self, optimizer: Optimizer, pending: Pending) -> Verdict:
        session = self._session
        _native.trace_stop()
        _native.gradients_are_sinks(False)
        session.capsules.stop(optimizer)
        alarm, isolation = pending["alarm"], pending["isolation"]
        ledger, eager = isolation.ledger, isolation.is_eager
        twice = pending["twice"] + isolation.end()
        is_back = pending["optimizer"] is optimizer
        why = _native.rewind_end(is_back)
        same = _is_same(incident.fingerprint(optimizer), pending["expected"], pending["way"] == "jump")
        follows = alarm["cause"]["class"] == "other-rank"  # what this rank holds is finite
        sinks = sinks_of.of_optimizer(optimizer)
        failed_again = bool(sinks) or any(loss["bad"] for loss in _native.window(optimizer)["losses"])
        if not is_back:
            why = "another optimizer stepped first"
        if why is None and not same and not eager:
            why = OTHER_BITS
        other = _other_data(pending) if why is None and not eager else ""
        if other and pending["vote"] is None and session.restart.is_possible():
            why = other
        in_place, bound = ledger.ruined(), ledger.rebound()
        if written := pending["weights"].changed():
            why = (
                f"the program itself writes {', '.join(written[:3])} after a step, and the second run "
                "began with what the first had written"
            )
        may_count = (
            why == OTHER_BITS or why is not None and bool(pending["over"])
        )  # another way than over the other optimizer's step
        down = (
            ledger.down(ledger.counted())
            if may_count and not pending["counts_down"] and pending["vote"] is None
            else ()
        )
        session.recent.leave(optimizer, alarm, ledger)
        lost = isolation.put_objects_back()
        _put_weights_back(pending)
        pending["others"].put_back()
        session.holds.second_run_ended(why is None and (pending["way"] != "jump" or bool(pending["over"])))
        session.holds.release()  # of the optimizers whose steps are applied; the policy holds again what is this one's
        session.holds.hold_for_step(
            [sharing for o in pending["left_out"] for sharing in optimizer_members.sharing(o)], alarm["step"]
        )
        if pending["vote"] is not None and (parted := pending["vote"].come_back(why or "")):
            why = parted
        found: Findings = {}
        if why is None and (same or failed_again):
            found = session.analysis.findings(optimizer, sinks, in_place=in_place, bound=bound, given_away=follows)
            why = carried_state.why(found.get("carried"))
        memory: Findings | None = None
        if why == OTHER_BITS and pending["vote"] is None:
            memory = session.part(session.analysis.of_unwritten_memory, optimizer, sinks)
        failure, shorter = f"{pending['way']} did not reproduce the step: {why}", pending.get("shorter")
        brought = _brought_in(optimizer, pending, found) if why is None and same and not other else ""
        earlier: Any = session.recent.computed(brought) if brought else None
        if brought and earlier is None:
            why = failure = f"jump from where another optimizer stepped: {brought} was bad before that"
            shorter = found
        if why is not None:
            incident.note_failed_way(alarm, failure)
            as_before = as_before_second_run(optimizer, pending)
            _native.trace_clear()
            if memory is not None:
                return self._explained_by_memory(
                    pending, memory, failed_again, written_twice(twice) + not_put_back(lost)
                )
            _native.tape_clear()
            if as_before and down and self._begin_again(pending, pending["tries"], twice, shorter, down):
                return "again"
            if as_before and (tries := _longer_way(optimizer, pending)) is not None:
                if self._begin_again(pending, tries, twice, shorter):
                    return "again"
            alarm["rerun_text"] += written_twice(twice) + not_put_back(lost)
            if (
                as_before
                and shorter
                and (session.second_runs.left.in_place_only() or not session.restart.is_possible())
            ):
                return self._explained_by_the_shorter(pending, shorter)
            trace_continues(session.config)
            return False
        _native.rewind_forget()
        earlier_ways = alarm["rerun_text"]
        together = "on all ranks together " if pending["vote"] is not None else ""
        back = (
            f"rewound over the step of {pending['over']}, which was undone and taken again, "
            if pending["over"]
            else "rewound to where another optimizer stepped last "
            if pending["way"] == "jump"
            else "rewound "
        )
        text = (
            back
            + together
            + "and run again in place"
            + (", what it counts set back" if pending["counts_down"] else "")
            + (", what it writes between two steps held" if pending["holds"] else "")
            + (", eagerly instead of compiled" if eager else "")
            + written_twice(twice)
        )
        if not same and not failed_again:
            text += f"; the step came out finite: {compat.ONLY_COMPILED}"
            note_rerun(alarm, pending["way"], "order-dependent", False, text)
            _native.trace_clear()
            _native.tape_clear()
            trace_continues(session.config)
            return True
        own = {id(p) for p in optimizer_members.parameters(optimizer)}
        for p, grad in pending["grads"]:
            if id(p) not in own:  # of a step that was taken again
                p.grad = grad
        if follows:
            _note_given(alarm, found)
        else:
            incident.apply(alarm, found)
        if brought:
            session.recent.follow(alarm, earlier)
        trace_continues(session.config)
        text += (
            f"; it failed again, but {other}"
            if other
            else same_bits(incident.compared(pending["expected"], "advisory" in alarm))
            if same
            else "; it failed again, with other bits"
        )
        session.second_run.note_recorded(not brought)
        if brought:
            _native.tape_clear()  # that step is in the capsule of the other alarm
            text += (
                f"; {brought} is of the step of {earlier['optimizer']} that was skipped, as the alarm "
                f"at step {earlier['step']} reports"
            )
        if earlier_ways:
            text += f" ({earlier_ways})"
        note_rerun(alarm, pending["way"], "persistent", same and not other, text + not_put_back(lost))
        return True

    def note_elsewhere(self, alarm: Alarm, optimizer: Optimizer) -> None:
        """The second run has come to a step of that optimizer, and the program continues there."""
        alarm["rerun_text"] += (
            f"; the program continues at a step of {type(optimizer).__name__} that the first run did not take"
        )

    def _begin_again(self, pending, tries, twice, shorter, down=()):
        """Tries another second run in the place of one that went wrong."""
        optimizer, alarm, sinks, expected = (pending[key] for key in ("optimizer", "alarm", "sinks", "expected"))
        step = BadStep(self._session, optimizer, alarm, sinks, expected=expected)
        if not serves(begin(step, tries, down, pending["losses"]), alarm):
            return False
        self._session.second_run.note_before(twice, shorter)
        return True

    def _explained_by_the_shorter(self, pending, found):
        """No way goes back further: what the jump found, which has the same bits, is reported."""
        alarm = pending["alarm"]
        incident.apply(alarm, found)
        same = same_bits(incident.compared(pending["expected"], "advisory" in alarm))
        text = f"rewound to where another optimizer stepped last and run again in place{same} ({alarm['rerun_text']})"
        note_rerun(alarm, "jump", "persistent", True, text)
        trace_continues(self._session.config)
        return True

    def _explained_by_memory(self, pending, found, failed_again, files):
        """The second run differs because it read memory that nobody had written: that is the reason of the first."""
        alarm = pending["alarm"]
        incident.apply(alarm, found)
        came = "it failed again, with other bits" if failed_again else "the step came out finite"
        text = f"run again in place; {came}: {MEMORY_DIFFERS}"
        if failed_again:
            self._session.second_run.note_recorded()
        else:
            _native.tape_clear()
        rerun: Rerun = "order-dependent" if failed_again else "transient"
        note_rerun(alarm, pending["way"], rerun, False, text + files)
        trace_continues(self._session.config)
        return True

    def abandon(self) -> Pending:
        """The second run did not come back to `step` (the script raised or ended in it)."""
        pending = self._session.second_run.take()
        isolation = pending["isolation"]
        isolation.drop_recording()
        twice, *_ = in_any_case(
            isolation.end,
            lambda: _native.rewind_end(False),
            _native.rewind_forget,
            isolation.put_objects_back,
            lambda: _put_weights_back(pending),
            pending["others"].put_back,
        )
        twice = pending["twice"] + twice
        why = "the second run did not come back to this step"
        if pending["vote"] is not None:
            pending["vote"].leave(why)
            why = pending["vote"].parted or why
        incident.note_failed_way(pending["alarm"], f"{pending['way']}: {why}" + written_twice(twice))
        return pending


def _note_given(alarm, found):
    """What a rank that holds finite values gave another one was not finite: that is what its alarm is about."""
    if found.get("births") and found["births"][0]["phase"] != "communication":
        alarm["sink"] = {"kind": "gradient", "name": "what another rank was given"}
        incident.apply(alarm, found)


def _longer_way(optimizer, pending):
    """How many ways are to be skipped for one that begins before the second run that was a jump and went wrong;
    None: there is none."""
    if pending["way"] != "jump" or pending["vote"] is not None:
        return None
    for tries in (1, 0):  # what the second run has left behind may have closed its own way
        if _native.rewind_way(optimizer, tries)[0] is None and _native.rewind_since() < pending["since"]:
            return tries
    return None


def _brought_in(optimizer, pending, found):
    """What a second run from another optimizer's step began with and found bad, where the window of its own optimizer
    begins before that and can be run again as a whole: a value without its graph, as of a log-probability that the
    actor's step has computed, or ""."""
    if not found.get("births"):
        return ""
    first = found["births"][0]
    given = (
        any(use["nan"] or use["inf"] for use in first["inputs"]) if first["op"] else first["phase"] in ("data", "state")
    )
    if not given or _longer_way(optimizer, pending) is None:
        return ""
    return first.get("name") or "what it read"


def _is_same(found, expected, later):
    """later: the second run may have begun behind the first losses of the window."""
    if later and found["losses"]:
        expected = {**expected, "losses": expected["losses"][-len(found["losses"]) :]}
    return found == expected


def _other_data(pending):
    """Where all values are NaN the bits prove little: a run on other data has drawn other numbers, or has other values
    in its names."""
    if pending["drawn"] != rng_generators.sums():
        return OTHER_NUMBERS
    other = incident.other_values(pending["named"])
    return f"{', '.join(other[:3])} came out with other values" if other else ""


def _put_weights_back(pending):
    if damaged := pending["weights"].put_back():
        pending["alarm"]["weights"] = "damaged"
        incident.note_failed_way(
            pending["alarm"], f"{', '.join(damaged[:3])} are as the second run left them: too large to be copied"
        )
