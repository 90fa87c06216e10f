"""Do modules run in the mode that the step is for?"""

from __future__ import annotations

from ..registry import check, warn


@check("P28", "training-mode", "steps")
def mode(steps):
    """A model in evaluation mode whose output a training loss is made of, where it has dropout or batch normalisation
    and its parameters are trained; a module that is in training mode with such layers frozen is no fault, nor is one
    that the loss uses in both modes. Dropout that is active inside a model in evaluation mode."""
    facts = steps.get("wiring", {})
    trained = {p["key"] for s in steps.steps for p in s["parameters"] if p.get("trains") and p["grad"]}
    by_root = {}
    for one in facts.get("modes", ()):
        if not one["training"] and not one["both"] and one["layers"] and trained & set(one["parameters"]):
            by_root.setdefault(one["root"], []).append(one)
    for found in by_root.values():
        first, layers = found[0], sorted({name for one in found for name in one["layers"]})
        yield warn(
            f"{first['module']} is trained in evaluation mode in {len(found)} backward calls, since step "
            f"{first['step']}: {', '.join(layers)} do not do what they do in training",
            "model.train() before the loop, and again after each evaluation",
            steps.at(first),
            layers=layers,
            step=first["step"],
        )
    random = facts.get("eval_random", ())
    if random:
        yield warn(
            f"dropout is active in evaluation mode, inside {random[0]['module']}",
            "F.dropout(x, p, training=self.training), or nn.Dropout; dropout_p=0.0 for attention in evaluation",
            steps.at(random[0]),
            count=len(random),
        )
