"""What a type checker sees of the package in a program that uses it; never run. Each `type: ignore` is a mistake that has to
be found: mypy names one that is not (warn_unused_ignores)."""

from typing import TYPE_CHECKING

import torch
from typing_extensions import assert_type

import finitude
from finitude.rules import Birth

if TYPE_CHECKING:
    from finitude.base.types import Alarm, Document

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())

with finitude.watch(model, optimizer, on_alarm="skip", level="tape", report="report.json", redact=True) as watch:
    assert_type(watch.alarms, list[Alarm])
    assert_type(watch.report(), Document)
finitude.watch(None, [optimizer]).close()
finitude.watch(model, optimizer, on_alram="skip")  # type: ignore[call-arg]
finitude.watch(model, optimizer, on_alarm="skp")  # type: ignore[arg-type]
finitude.watch(model, optimizer, "skip")  # type: ignore[call-arg]
finitude.wach(model)  # type: ignore[attr-defined]

assert_type(finitude.step(lambda: 3.0), float)
assert_type(finitude.save("name", torch.ones(2)), torch.Tensor)
assert_type(str(finitude.explain(torch.ones(2))), str)
assert_type(finitude.__version__, str)
finitude.allow(module="mask", reason="-Inf is meant")


@finitude.rule("gate-saturated")
def gate_saturated(birth: Birth) -> finitude.Cause | None:
    if birth.op != "aten::reciprocal" or birth.input("self")["zero"] == 0:
        return None
    assert_type(birth.clamped("self", min=1e-6), bool | None)
    return finitude.Cause("user:gate-saturated", "the gate closed to exactly 0", fix="gate.clamp(min=1e-6)")


try:
    optimizer.step()
except finitude.NonFiniteError as e:
    assert_type(e.report, Alarm | None)
