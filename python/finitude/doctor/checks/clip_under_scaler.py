"""The order of scale, backward, unscale_, clip, step and update."""

from __future__ import annotations

import ast
import os

from ..facts import number
from ..registry import bad, check, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLIPS = (
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.clip_grad.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_value_",
    "torch.nn.utils.clip_grads_with_norm_",
)
ONCE = "once per optimizer and iteration: it is not idempotent, a second call raises"
SHOWN = 12


@check("P7", "clip-under-scaler", "source")
def order_in_source(source):
    """Clipping between `scaler.scale(loss).backward()` and `scaler.step` before `unscale_` or without it; `unscale_`
    twice in one block; a scaler that is stepped and never updated."""
    for made, names in source.scalers():
        calls = [c for c in made.file.calls if c.receiver in names]
        stepped = [c for c in calls if c.method == "step"]
        for step in stepped:
            before = [c for c in made.file.calls if c.function is step.function and c.node.lineno <= step.node.lineno]
            scaled = any(c.method == "scale" and c.receiver == step.receiver for c in before)
            clipped = [c for c in before if c.name in CLIPS]
            unscaled = [c for c in before if c.method == "unscale_" and c.receiver == step.receiver]
            late = (
                bool(unscaled) and all(c.node.lineno > clipped[0].node.lineno for c in unscaled) if clipped else False
            )
            if scaled and clipped and (late or not source.methods("unscale_")):
                yield bad(
                    "gradients are clipped while they are still multiplied by the loss scale"
                    + (f": unscale_ is only called in line {unscaled[0].node.lineno}" if late else ""),
                    f"{step.receiver}.unscale_(optimizer) once, before it is clipped",
                    (clipped[0] if late else clipped[-1]).at,
                )
            yield from _twice(unscaled)
        if stepped and not source.methods("update"):
            yield warn(
                f"{stepped[0].receiver}.update() is never called: the scale never adapts, and a second step raises",
                "update() once per iteration, after the last step()",
                stepped[0].at,
            )


def _twice(calls):
    """The same call twice among the statements of one block: nothing decides that only one of them runs."""
    seen = {}
    for c in calls:
        statement = next((p for p in c.parents() if isinstance(p, ast.stmt)), None)
        around = next(p for p in c.file.parents(statement))
        field = next(
            (name for name, value in ast.iter_fields(around) if isinstance(value, list) and statement in value), ""
        )
        key = id(around), field, ast.unparse(c.node)
        if isinstance(statement, ast.Expr) and key in seen:
            yield bad(f"{ast.unparse(c.node)} is called in line {seen[key]} and again here", ONCE, c.at)
            return
        seen[key] = c.node.lineno


@check("P7", "clip-under-scaler", "steps")
def order_of_calls(steps):
    """The calls in their order: clipped before `unscale_`, `unscale_` twice before `update`, stepped
    twice without `update`, backward once more after `unscale_`, `optimizer.step()` in place of
    `scaler.step(optimizer)`."""
    window = _Window(len(steps.by_optimizer()) < 2)
    for e in steps.events:
        if finding := window.enter(e):
            make, text, advice, more = finding
            yield make(f"{text} ({window.calls()})", advice, steps.at(e), order=window.order, **more)
            return


class _Window:
    """The calls since the last update(). alone: one optimizer, so that every gradient is its."""

    def __init__(self, alone):
        self.alone = alone
        self._clear()

    def _clear(self) -> None:
        self.scale, self.unscaled, self.stepped, self.order, self.has_backward = None, set(), set(), [], False

    def calls(self) -> str:
        parts = self.order if len(self.order) <= SHOWN else ["...", *self.order[-SHOWN:]]
        return ", ".join(parts)

    def _note(self, e: dict[str, Any]) -> None:
        if e["what"] in ("scale", "backward", "unscale_", "clip", "scaler.step", "update", "step") and not e.get(
            "inside"
        ):
            self.order.append(f"{e['what']} {os.path.basename(e['file'])}:{e['line']}")

    def enter(self, e):
        """(finding, text, advice, evidence) of a call that must not come here, or None."""
        self._note(e)
        what, owned = e["what"], frozenset(e.get("owned") or ())
        if what == "scale":
            self.scale = e["scale"]
        elif what == "backward":
            return self._backward()
        elif what == "unscale_":
            if owned in self.unscaled and not e["inside"]:
                return bad, "unscale_ is called a second time before update()", ONCE, {}
            self.unscaled.add(owned)
        elif what == "clip":
            return self._clip(e, owned)
        elif what == "step":
            return self._step(owned)
        elif what == "scaler.step":
            if owned in self.stepped:
                return bad, "scaler.step is called a second time without update()", "update() once per iteration", {}
            self.stepped.add(owned)
        elif what == "update":
            self._clear()
        return None

    def _backward(self):
        self.has_backward = True
        if self.alone and self.scale and self.unscaled - self.stepped:
            return (
                bad,
                "backward is called after unscale_: it adds gradients times the loss scale to gradients without it",
                "unscale_ after the last backward of the iteration",
                {"scale": self.scale},
            )
        return None

    def _clip(self, e, owned):
        if self.scale in (None, 1.0) or not owned or any(owned & u for u in self.unscaled):
            return None
        norm = number(e.get("norm"))
        unscaled = f": norm {norm:.3g} is {norm / self.scale:.3g} without the scale" if norm == norm else ""
        return (
            bad,
            f"gradients are clipped while they are multiplied by the loss scale {self.scale:g}{unscaled}",
            "scaler.unscale_(optimizer) once, before it is clipped",
            {"scale": self.scale, "norm": norm, "norm_without_scale": norm / self.scale},
        )

    def _step(self, owned):
        if not self.alone or self.scale in (None, 1.0) or not self.has_backward or self.stepped:
            return None
        if any(owned & u for u in self.unscaled):
            return (
                warn,
                "optimizer.step() is called after unscale_, past the scaler: a gradient that overflowed is applied",
                "scaler.step(optimizer), which skips such a step",
                {"scale": self.scale},
            )
        return (
            bad,
            f"optimizer.step() is called on gradients that are multiplied by the loss scale {self.scale:g}",
            "scaler.step(optimizer) in its place",
            {"scale": self.scale},
        )
