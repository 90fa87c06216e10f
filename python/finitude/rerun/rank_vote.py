"""What several ranks do only together: each says whether it can, and then all of them do it or none does.

They talk over the store through which their process group met, never over the collective operations of the training,
and wait for one another for a limited time. What was decided is set once, by compare-and-set: nobody can act on a vote
that another one has given up waiting for. What a rank asks of the store does not depend on how many ranks there are
(program/gathering.py).

None continues after a second run before all have ended it. One that took another way than the first time has made other
collective operations, so that the others wait for it inside theirs, or would be given what was meant for a later step:
then the run ends, on all of them."""

from __future__ import annotations

import os
import re
import threading
import time

from .. import _native
from ..base import compat
from ..effects import output_suppression
from ..program import gathering, ranks, sinks as sinks_of
from ..report import incident
from ..report.document import without_inner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Context, Optimizer
    from .under_way import SecondRun

LIMIT_S = 30.0  # how long the votes of the others are waited for
PARTING_S = 10.0  # and, before this rank ends the program, that they have reported what they found
STRAY_S = 30.0  # how long a second run may make no progress when another rank has ended its own
STALL_S = 180.0  # and all of them together
_WATCH_S = 0.25
_WATCH_OF_EACH_S = 1 / 256  # for each rank: so often all of them together may look at the second run
_MOST_NAMED = 16  # ranks in one sentence
_GO, _BACK = "go", "back"
_RING_S = 0.25  # how often it is looked at what steps the others have taken
_left = ""  # why this rank has given up agreeing with the others, for the rest of the run


class Ballot:
    """What this process asks the other ranks."""

    def __init__(self, context: Context, second_run: SecondRun, is_member: bool, end: Callable[[], None]):
        """is_member: several processes of a run leave reports. end: the program ends (Ending.end)."""
        self._context, self._second_run, self._is_member, self._end = context, second_run, is_member, end
        self._returns = 0  # how often the ranks were asked whether they go back to a copy
        self._asked = {}  # key of the last step of which the ranks were asked whether they see it -> do they all

    def of_recorded(self, optimizer: Optimizer, alarm: Alarm) -> Vote | None:
        """Of ranks that have recorded the step: nothing is voted on, each says what it found. Under `warn` no rank asks
        whether all are in this alarm: the others may wait for it in a collective operation."""
        vote = self.vote_on(optimizer, alarm, self._context.config.on_alarm != "warn")
        if vote is not None:
            vote.is_recorded = True
        return vote

    def vote_on(self, optimizer: Optimizer, alarm: Alarm, may_ask: bool = True) -> Vote | None:
        """A vote of all ranks on a second run in place, or None where some of them may not be in this alarm. may_ask:
        whether they are, where that is not known."""
        if _native.window(optimizer)["on_device"]:  # the exchange waits in kernels there: all are started again instead
            return None
        if not ranks.several() or alarm["harmless"] or self._context.config.on_alarm == "raise":
            return None
        if not ranks.seen_by_all(sinks_of.bad_parameters(optimizer, False), by_everyone=True) and not (
            may_ask and self._all_say(alarm["optimizer_ordinal"], alarm)
        ):
            return None
        store = compat.group_store()
        return (
            Vote(store, _key(alarm["optimizer_ordinal"], alarm), end_process=self._end_process)
            if store is not None
            else None
        )

    def all_see(self, optimizer: Optimizer, ordinal: int, alarm: Alarm, written: bool) -> bool:
        """Is every rank in this alarm? written: the step has written what is bad."""
        if self._asked.get(_key(ordinal, alarm)) or ranks.seen_by_all(sinks_of.bad_parameters(optimizer, written)):
            return True
        return not alarm["harmless"] and not _native.window(optimizer)["on_device"] and self._all_say(ordinal, alarm)

    def all_go_back(
        self, optimizer: Optimizer | None, ordinal: int, alarm: Alarm, written: bool, why: str, way: str, note: str
    ) -> str:
        """Do all ranks go back to a copy at this alarm? "", or why none does.

        written: by a step that was taken. why: what keeps this rank from it, or "". way: from where to where, which has
        to be the same on all. note: for the others, or ""."""
        if not self._is_seen(optimizer, ordinal, alarm, written):
            return "it is not known that all ranks are in this alarm"
        if (store := compat.group_store()) is None:
            return why or "there is no store"
        self._returns += 1
        key = f"finitude/back/{self._returns}"
        # Where the step was taken all rings have it.
        vote = Vote(store, key) if written else Vote(store, key, self._rings(ordinal, alarm).taken_by)
        try:
            if note:
                store.set(f"{key}/note/{vote.rank}", note)
        except (RuntimeError, ValueError, OSError):
            pass  # the vote says so
        refused = vote.cast(why, way)
        if not refused:
            self._asked.clear()
            self._asked[_key(ordinal, alarm)] = True
        return refused

    def notes(self) -> list[str]:
        """Of all ranks, in order, where all go back. Raises RuntimeError, ValueError, OSError: the store is gone."""
        store: Any = compat.group_store()
        keys = [f"finitude/back/{self._returns}/note/{rank}" for rank in range(ranks.world()[1])]
        return [note.decode() for note in store.multi_get(keys)]

    def _is_seen(self, optimizer, ordinal, alarm, written):
        """By all ranks of the run, each of which will come to the same question?"""
        if self._asked.get(_key(ordinal, alarm)):
            return True
        if optimizer is None or alarm["harmless"]:
            return False
        if ranks.seen_by_all(sinks_of.bad_parameters(optimizer, written), by_everyone=True):
            return True
        return not written and self._all_say(ordinal, alarm)

    def note_all(self, alarm: Alarm) -> None:
        """All ranks have said that they are in this alarm (session/agreement.py)."""
        self._asked.clear()
        self._asked[_key(alarm["optimizer_ordinal"], alarm)] = True

    def _all_say(self, ordinal, alarm):
        """Nothing makes sure of it (shards, gradients that the program itself exchanges): each rank that sees the bad
        step says so, and waits for the others. Those that see nothing bad do not come; they take the step, which their
        ring shows."""
        key = _key(ordinal, alarm)
        if key not in self._asked:
            store = compat.group_store()
            self._asked.clear()
            self._asked[key] = store is not None and not Vote(
                store, f"{key}/seen", self._rings(ordinal, alarm).taken_by
            ).cast("")
        return self._asked[key]

    def _rings(self, ordinal, alarm):
        return _Rings(self._is_member and self._context.report.run_directory(), ordinal, alarm["step"])

    def note_reported(self, vote: Vote | None) -> None:
        """This rank's alarm is in its report; what ends the program is an error of the operation that it waited in."""
        if vote is not None:
            self._context.report.save()
            try:
                vote.report_done()
            except (RuntimeError, ValueError, OSError):
                pass

    def _end_process(self, why, vote):
        """The program's own thread cannot be reached: what is known is reported, and the process ended."""
        pending = self._second_run.take()
        output_suppression.let_go()
        if pending is not None:
            alarm = pending["alarm"]
            incident.note_failed_way(alarm, why)
            alarm["action"] = "stopped"
            without_inner(alarm)
            self._context.report.add_alarm(alarm)
            self._context.console.print_alarm(alarm)
        self._end()
        self.note_reported(vote)
        os._exit(1)


def _key(ordinal, alarm):
    return f"finitude/{ordinal}/{alarm['step']}"


class _Rings:
    """The steps that other ranks of this machine have taken, in the rings beside this rank's own."""

    def __init__(self, directory, ordinal, step):
        """directory: of this rank's own in the run, if it has one."""
        self.directory, self.ordinal, self.step = directory, ordinal, step
        self._looked = 0.0  # when

    def taken_by(self):
        """A rank whose ring shows this step or a later one, or None. Looks four times a second at most."""
        now = time.monotonic()
        if not self.directory or now - self._looked < _RING_S:
            return None
        self._looked = now
        mine = os.path.basename(self.directory)
        try:
            names = os.listdir(os.path.dirname(self.directory))
        except OSError:
            return None
        others = [(int(found[1]), name) for name in names if (found := re.fullmatch(r"rank-(\d+)", name))]
        return next((rank for rank, name in sorted(others) if name != mine and self._has_taken(name)), None)

    def _has_taken(self, name):
        try:
            ring = _native.read_ring(os.path.join(os.path.dirname(self.directory), name, "steps.ring"))
            os.kill(ring["pid"], 0)  # no leftover of one that a launcher has started again since
        except (OSError, ValueError):
            return False
        return any(s["optimizer"] == self.ordinal and s["step"] >= self.step for s in reversed(ring["steps"]))


def part(vote: Vote | None) -> None:
    """Before this rank ends the program, and its launcher the others: those that are in this alarm have reported,
    whether they run the step again or not."""
    if vote is not None and not _left:
        vote.part()


class Vote:
    """One question, on which each rank votes once."""

    def __init__(
        self,
        store: Any,
        key: str,
        gone_by: Callable[[], int | None] = lambda: None,
        end_process: Callable[[str, Vote], None] = lambda why, vote: None,
    ):
        """gone_by: a rank that will not come any more, if there is one. end_process: is called with the reason where
        the program's own thread cannot be let out of its second run."""
        self.store, self.key, self.gone_by, self.end_process = store, key, gone_by, end_process
        self.rank, self.size = ranks.world()
        self._decided_key, self._ended_key = f"{key}/decided", f"{key}/ended"
        self._votes, self._back, self._reported = (
            gathering.Gathering(store, f"{key}/{what}", self.rank, range(self.size))
            for what in ("vote", "back", "reported")
        )
        self.goes = False
        self.is_recorded = False  # nothing is asked: each rank has recorded the step, and says what it found
        self.parted = ""  # why the ranks cannot continue together after their second run
        self._watch: threading.Thread | None = None

    def cast(self, why: str, way: str = "") -> str:
        """why: what keeps this rank from it, or "". way: how it would do it, which has to be the same on all of them.
        Returns "" if all do it now, else why none does."""
        global _left
        why = why or _left
        try:
            decided = self._decide(f"rank {self.rank}: {why}") if why else self._vote(way)
        except (RuntimeError, ValueError, OSError) as e:  # the store is gone, and whoever kept it
            _left = f"the ranks could not agree ({str(e).splitlines()[0] if str(e) else type(e).__name__})"
            return _left
        self.goes = decided == _GO
        return "" if self.goes else decided

    def is_joined(self) -> bool:
        """Do all ranks explain this step?"""
        return self.goes or self.is_recorded

    def _decide(self, text: str) -> str:
        """What was decided first, by whomever."""
        return gathering.say_first(self.store, self._decided_key, text)

    def _vote(self, way):
        first, _, its_way = gathering.say_first(self.store, f"{self.key}/way", f"{self.rank} {way}").partition(" ")
        if its_way != way:
            return self._decide(f"rank {first} would go back to elsewhere than rank {self.rank}")
        self._votes.arrive()
        return self._wait()

    def _wait(self):
        global _left
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            if decided := gathering.said(self.store, self._decided_key):
                return decided
            if self._votes.is_complete():
                return self._decide(_GO)
            if (gone := self.gone_by()) is not None:
                return self._decide(f"rank {gone} has taken this step")
            time.sleep(gathering.poll_s(self.size))
        decided = gathering.said_by_one(
            self.store,
            self._decided_key,
            self.size,
            self._who_is_late,
        )
        if decided != _GO:
            _left = "an earlier step did not come to all ranks"
        return decided

    def _who_is_late(self):
        missing = self._votes.missing()
        if not missing:
            return _GO  # the last one came meanwhile
        return f"rank {_named(missing)} did not come to this step within {LIMIT_S:.0f} s"

    def part(self) -> None:
        """Waits until all have reported, for a limited time."""
        try:
            self.report_done()
            limit = time.monotonic() + PARTING_S
            while not self._reported.is_complete() and time.monotonic() < limit:
                time.sleep(gathering.poll_s(self.size))
        except (RuntimeError, ValueError, OSError):
            pass

    def report_done(self) -> None:
        """What this rank found is in its report: from now on it may be ended."""
        self._reported.arrive()

    # -- the second run -------------------------------------------------------------------------

    def watch(self) -> None:
        """It has begun."""
        self._watch = threading.Thread(target=self._look, name="finitude ranks", daemon=True)
        self._ended = threading.Event()
        self._watch.start()

    def come_back(self, why: str) -> str:
        """It has ended here, by `why` in another way than the first. Waits for the others, and returns "" if all
        continue from it, else why none does."""
        if self._watch is None or self._ended.is_set():
            return self.parted
        try:
            self._note_back(why)
            while not gathering.said(self.store, self._ended_key) and not self._back.is_complete():
                time.sleep(gathering.poll_s(self.size))
            decided = gathering.say_first(self.store, self._ended_key, _BACK)
            self.parted = "" if decided == _BACK else decided
        except (RuntimeError, ValueError, OSError) as e:
            self.parted = (
                "the ranks could not agree after the second run "
                f"({str(e).splitlines()[0] if str(e) else type(e).__name__})"
            )
        self._ended.set()
        return self.parted

    def leave(self, why: str) -> None:
        """The program ends inside of it: nobody waits for anybody any more."""
        if self._watch is None or self._ended.is_set():
            return
        self._ended.set()
        try:
            self._note_back(why)
        except (RuntimeError, ValueError, OSError):
            pass

    def _note_back(self, why):
        self._back.arrive(why or "it came back")

    def _look(self) -> None:
        """In a thread of its own, as the second run may wait in a collective operation."""
        moved, seen, own = time.monotonic(), None, ""
        try:
            while not self._ended.wait(max(_WATCH_S, self.size * _WATCH_OF_EACH_S)):
                if (now_own := str(_native.trace_length())) != own:
                    own = now_own
                    self.store.set(self._position_key(self.rank), own)
                    self.store.add(f"{self.key}/moved", 1)
                now, ended = time.monotonic(), self._back.count()
                at = (self.store.add(f"{self.key}/moved", 0), ended)
                moved, seen = (moved if at == seen else now), at
                decided = gathering.said(self.store, self._ended_key)
                if not decided and now - moved > (STRAY_S if ended else STALL_S):
                    decided = gathering.said_by_one(self.store, self._ended_key, self.size, self._where_all_are)
                if decided and decided != _BACK:
                    self._part(decided)
                    return
        except (RuntimeError, ValueError, OSError):
            pass  # the store is gone, and with it whoever kept it: the collective operations fail too

    def _position_key(self, rank):
        return f"{self.key}/at/{rank}"

    def _where_all_are(self):
        """Those that have ended it first: they say why the others wait."""
        ended, waiting = [], []
        for rank in range(self.size):
            if (why := self._back.text_of(rank)) is not None:
                ended.append((rank, f"rank {rank} has ended it ({why})"))
            elif position := gathering.said(self.store, self._position_key(rank)):
                waiting.append((rank, f"rank {rank} stopped after {position} operations"))
        named = (ended + waiting)[:_MOST_NAMED]
        more = len(ended) + len(waiting) - len(named)
        texts = [text for _, text in sorted(named)] + ([f"and {more} more"] if more else [])
        return f"the second run came to a halt: {', '.join(texts)}"

    def _part(self, why):
        """Lets the program's own thread out of the operation that it waits in; if that cannot be, ends the process."""
        self.parted = why
        if self._back.is_here:
            return  # it waits for the others, and has heard
        compat.abort_groups()
        if not self._ended.wait(PARTING_S):
            self.end_process(why, self)


def _named(some):
    more = len(some) - _MOST_NAMED
    return ", ".join(map(str, some[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
