"""The order of scale, backward, unscale_, clip, step and update."""

from ..registry import bad, check, warn

CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad.clip_grad_norm_",
         "torch.nn.utils.clip_grad.clip_grad_value_")


@check("P7", "clip-under-scaler", "source")
def order_in_source(source):
    """Clipping between `scaler.scale(loss).backward()` and `scaler.step` in a script that never calls `unscale_`; a scaler that is
    stepped and never updated."""
    for made, names in source.scalers():
        calls = [c for c in made.file.calls if c.receiver in names]
        stepped = [c for c in calls if c.method == "step"]
        for step in stepped:
            before = [c for c in made.file.calls if c.function is step.function and c.node.lineno <= step.node.lineno]
            scaled = any(c.method == "scale" and c.receiver == step.receiver for c in before)
            clipped = [c for c in before if c.name in CLIPS]
            if scaled and clipped and not source.methods("unscale_"):
                yield bad("gradients are clipped while they are still multiplied by the loss scale",
                          f"{step.receiver}.unscale_(optimizer) once, before it is clipped", clipped[-1].at)
        if stepped and not source.methods("update"):
            yield warn(f"{stepped[0].receiver}.update() is never called: the scale never adapts, and a second step raises",
                       "update() once per iteration, after the last step()", stepped[0].at)


@check("P7", "clip-under-scaler", "steps")
def order_of_calls(steps):
    """The calls as they came: clipped before `unscale_`, `unscale_` twice before `update`, stepped twice without `update`."""
    scale, unscaled, stepped = None, set(), set()
    for e in steps.events:
        owned = frozenset(e.get("owned") or ())
        if e["what"] == "scale":
            scale = e["scale"]
        elif e["what"] == "unscale_":
            if owned in unscaled:
                yield bad("unscale_ is called a second time before update()", "once per optimizer and step: a second call raises", steps.at(e))
                return
            unscaled.add(owned)
        elif e["what"] == "clip" and scale is not None and owned and not any(owned & u for u in unscaled):
            norm = e.get("norm")
            told = f": norm {float(norm):.3g} is {float(norm) / scale:.3g} without the scale" if norm not in (None, "NaN") and scale else ""
            yield bad(f"gradients are clipped while they are multiplied by the loss scale {scale:g}{told}",
                      "scaler.unscale_(optimizer) once, before it is clipped", steps.at(e), scale=scale)
            return
        elif e["what"] == "scaler.step":
            if owned in stepped:
                yield bad("scaler.step is called a second time without update()", "update() once per iteration", steps.at(e))
                return
            stepped.add(owned)
        elif e["what"] == "update":
            scale, unscaled, stepped = None, set(), set()
