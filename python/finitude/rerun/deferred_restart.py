"""Under `skip` the first bad step of a kind is explained in any way, and later ones where they can be run again in
place. The first for which that went wrong is explained when the program has ended by itself: it is started again up to
that step, and nothing waits for it."""

from __future__ import annotations

from ..report import incident
from ..report.document import without_inner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Alarm, Config, Fingerprint
    from ..report.document import Report
    from .restart import Restart

LONGEST = 60  # seconds up to that step


class Rest:
    def __init__(
        self,
        config: Config,
        report: Report,
        restart: Restart,
        decided: list[list[Any]],
        print_alarm: Callable[[Alarm], None],
        explains: bool,
    ):
        """decided: of skipped steps (SkippedSteps.decided). print_alarm: reports an alarm to a person. explains: this
        process explains a step of another one."""
        self._config, self._report, self._restart, self._decided = config, report, restart, decided
        self._show_alarm, self._explains = print_alarm, explains
        self._first: Any = None

    def note(self, alarm: Alarm, expected: Fingerprint) -> None:
        """A step in the open window that is not run again, though a second process could. expected: its bits."""
        took = self._restart.seconds()
        if (
            self._first is None
            and self._config.on_alarm in ("skip", "rollback")
            and not alarm["harmless"]
            and not self._explains
            and self._restart.is_possible()
            and took <= LONGEST
        ):
            self._first = (
                alarm,
                expected,
                alarm["optimizer_ordinal"],
                (list(self._decided), incident.in_names(), took),
            )

    def drop(self, alarm: Alarm) -> None:
        """Another alarm reports it."""
        if self._first is not None and self._first[0] is alarm:
            self._first = None

    def explain(self) -> None:
        """The program has ended, and nobody waits for that."""
        noted, self._first = self._first, None
        if noted is None:
            return
        alarm, expected, ordinal, then = noted
        if alarm["births"] or not any(alarm is a for a in self._report.alarms):
            return
        alarm["optimizer_ordinal"] = ordinal
        try:
            self._report.save(is_shown=False)
            if self._restart.run(alarm, expected, then=then) and alarm["births"]:
                self._show_alarm(alarm)
        finally:
            without_inner(alarm)
