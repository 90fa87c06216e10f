"""What several ranks do only together: each says whether it can, and then all of them do it or none does.

They talk over the store through which their process group met, never over the collective operations of the training, and
wait for one another for a limited time. What was decided is set once, by compare-and-set: nobody can act on a vote that
another one has given up waiting for.
"""

import time

from . import compat, ranks

LIMIT_S = 30.0        # how long the votes of the others are waited for
PARTING_S = 10.0      # and, before this rank ends the program, that they have told what they found
_POLL_S = 0.005
_GO = "go"
_left = ""            # why this rank has given up agreeing with the others, for the rest of the run


def vote_on(session, optimizer, alarm):
    """A vote of all ranks on a second run in place, or None where some of them may not be in this alarm."""
    if not ranks.several() or alarm["harmless"] or session.config.on_alarm == "raise" or session.units.of_framework() or \
            not ranks.seen_by_all(session.bad_parameters(optimizer, False), by_everyone=True):
        return None
    store = compat.group_store()
    return Vote(store, f"finitude/{alarm['optimizer_ordinal']}/{alarm['step']}") if store is not None else None


def part(vote):
    """Before this rank ends the program, and its launcher the others: those that ran the step again have told."""
    if vote is not None and vote.goes:
        vote.part()


class Vote:
    """One question, on which each rank votes once."""

    def __init__(self, store, key):
        self.store, self.key = store, key
        self.rank, self.size = ranks.world()
        self.goes = False

    def cast(self, why, way=""):
        """why: what keeps this rank from it, or "". way: how it would do it, which has to be the same on all of them.
        Returns "" if all do it now, else why none does."""
        global _left
        why = why or _left
        try:
            decided = self._decide(f"rank {self.rank}: {why}") if why else ""
            self.store.set(self._of("vote", self.rank), way)
            decided = decided or self._wait(way)
        except (RuntimeError, ValueError, OSError) as e:  # the store is gone, and whoever kept it
            _left = f"the ranks could not agree ({str(e).splitlines()[0] if str(e) else type(e).__name__})"
            return _left
        self.goes = decided == _GO
        return "" if self.goes else decided

    def _of(self, what, rank):
        return f"{self.key}/{what}/{rank}"

    def _others(self):
        return [r for r in range(self.size) if r != self.rank]

    def _decide(self, text):
        """What was decided first, by whomever."""
        return self.store.compare_set(f"{self.key}/decided", "", text).decode()

    def _wait(self, way):
        global _left
        if missing := self._missing("vote", LIMIT_S, f"{self.key}/decided"):
            late = ", ".join(map(str, missing))
            decided = self._decide(f"rank {late} did not come to this step within {LIMIT_S:.0f} s")
            if decided != _GO:
                _left = "an earlier step did not come to all ranks"
            return decided
        ways = {r: self.store.get(self._of("vote", r)).decode() for r in self._others()} \
            if not self.store.check([f"{self.key}/decided"]) else {}
        other = next((r for r, found in ways.items() if found != way), None)
        return self._decide(_GO if other is None else f"rank {other} would go back to elsewhere")

    def _missing(self, what, seconds, until=""):
        """The ranks that have not left their word after so long, or after `until` was set by another."""
        missing, limit = self._others(), time.monotonic() + seconds
        while missing and time.monotonic() < limit:
            if until and self.store.check([until]):
                return []
            missing = [r for r in missing if not self.store.check([self._of(what, r)])]
            if missing:
                time.sleep(_POLL_S)
        return missing

    def part(self):
        """Waits until all have told, for a limited time."""
        try:
            self.store.set(self._of("told", self.rank), "")
            self._missing("told", PARTING_S)
        except (RuntimeError, ValueError, OSError):
            pass
