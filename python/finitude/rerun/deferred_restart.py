"""Under `skip` the first bad step of a kind is explained in any way, and later ones where they can be run again in
place. The first for which that went wrong is explained when the program has ended by itself: it is started again up to
that step, and nothing waits for it."""

from __future__ import annotations

import time

from ..report import incident
from ..report.document import without_inner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, Fingerprint, Session

LONGEST = 60  # seconds up to that step


class Rest:
    def __init__(self, session: Session):
        self._session = session
        self._first: Any = None

    def note(self, alarm: Alarm, expected: Fingerprint) -> None:
        """A step in the open window that is not run again, though a second process could. expected: its bits."""
        session = self._session
        took: Any = time.monotonic() - session.start.monotonic if session.start is not None else None
        if (
            self._first is None
            and session.config.on_alarm in ("skip", "rollback")
            and not alarm["harmless"]
            and session.target is None
            and session.restart.is_possible()
            and took <= LONGEST
        ):
            self._first = (
                alarm,
                expected,
                alarm["optimizer_ordinal"],
                (list(session.decided), incident.in_names(), took),
            )

    def drop(self, alarm: Alarm) -> None:
        """Another one tells of it."""
        if self._first is not None and self._first[0] is alarm:
            self._first = None

    def explain(self) -> None:
        """The program has ended."""
        session = self._session
        noted, self._first = self._first, None
        if noted is None or not session.ending.has_time or session.ending.is_hurried:
            return
        alarm, expected, ordinal, then = noted
        if alarm["births"] or not any(alarm is a for a in session.report.alarms):
            return
        alarm["optimizer_ordinal"] = ordinal
        try:
            session.report.save(is_told=False)
            if session.restart.run(alarm, expected, then=then) and alarm["births"]:
                session.teller.tell(alarm)
        finally:
            without_inner(alarm)
