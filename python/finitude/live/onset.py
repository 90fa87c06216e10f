"""The quantity that grew before an alarm, from some steps before its onset on."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..store.reader import Series, Store

BEFORE = 200  # steps before the onset
MOST_STRIPS = 8  # of a process
_WHOLE = {
    "loss": ("loss",),
    "gradient": ("gradient_norm", "gradient_absmax"),
    "learning-rate": ("learning_rate",),
}
_OF_PARAMETER = ("weight_absmax", "gradient_absmax")


def strips(store: Store, every: list[Series], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of alarms with an onset, the newest: {"step", "since", "from", "quantity", "name", "optimizer", "at": steps,
    "values"}. Of a parameter it is the largest weight or gradient, whichever grew by more. Raises reader.Unreadable."""
    found: list[dict[str, Any]] = []
    for event in reversed(events):
        if len(found) < MOST_STRIPS and event["kind"] == "alarm" and event.get("since") is not None:
            made = _strip(store, every, event)
            if made:
                found.append(made)
    return found[::-1]


def _strip(store, every, event):
    name, since, end = event.get("name", ""), event["since"], event["step"]
    if end is None or end < since:
        return None
    best: dict[str, Any] | None = None
    most = 0.0
    for quantity in _WHOLE.get(name, _OF_PARAMETER):
        own = [s for s in every if s.quantity == quantity and s.parameter == (None if name in _WHOLE else name)]
        # Names of optimizers in events have no number: the first of its class.
        series = next((s for s in own if s.optimizer == event.get("optimizer")), next(iter(own), None))
        if series is None:
            continue
        points = [p for p in store.points(series.id, max(0, since - BEFORE)) if p.step <= end and p.max is not None]
        if not points:
            continue
        values = [p.max for p in points]
        growth = values[-1] / values[0] if values[0] > 0 else 1.0
        if best is None or growth > most:
            most = growth
            best = {
                "step": end,
                "since": since,
                "from": min(since, max(points[0].step, since - BEFORE)),
                "quantity": quantity,
                "name": series.parameter or "",
                "optimizer": series.optimizer,
                "at": [min(p.last_step, end) for p in points],
                "values": [float(f"{value:.6g}") for value in values],
            }
    return best
