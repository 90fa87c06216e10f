"""watch(on_alarm=function): the program itself says what to do with a bad step, within the limits of the policy."""

from __future__ import annotations

import copy

from ..program import optimizer_members, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm
    from ..report.document import Report

ACTIONS = ("skip", "warn", "stop", "raise", "rollback", "lower-rate")


class ChosenAction:
    def __init__(self, function: Callable[[dict[str, Any]], Any], report: Report):
        self._user_choice, self._report = function, report

    def choose(self, alarm: Alarm, action: str) -> str:
        """What the function says of an explained alarm; `action`, which the policy says, where it says nothing that can
        be done, where a limit of the policy stops the run, and with several ranks, which have to do the same."""
        if action in ("stop", "raise"):
            return action
        if ranks.several():
            self._report.complain("the function on_alarm of watch is not called with several ranks", "on_alarm")
            return action
        try:
            said = self._user_choice(copy.deepcopy(dict(alarm)))
        except Exception as e:  # of the user's function
            self._report.complain(f"the function on_alarm of watch failed: {type(e).__name__}: {e}", "on_alarm")
            return action
        finally:
            optimizer_members.moved()  # code of the program has run
        if said is None:
            return action
        if said not in ACTIONS:
            words = ", ".join(ACTIONS)
            self._report.complain(f"the function on_alarm of watch returns one of {words}, not {said!r}", "on_alarm")
            return action
        return "stop" if said == "raise" else said
