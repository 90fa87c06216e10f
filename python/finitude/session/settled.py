"""What is said of an alarm once it is known what becomes of its step."""

from __future__ import annotations

from .. import _native
from ..program import batch_source, sinks as sinks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Alarm, Config, Optimizer
    from ..program.grad_scaler import Scaling
    from ..program.reported_tensors import Known
    from ..report.damage import Damage


class Settled:
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
        _native.put_back(batch_source.iterates_data())
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
