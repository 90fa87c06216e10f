"""Does an optimizer own what gets a gradient?"""

from __future__ import annotations

from ..registry import check, note, warn


@check("P25", "parameters-owned", "steps")
def owned(steps):
    """Parameters that get a gradient, belong to no optimizer, and do not change over two steps and more: where the
    optimizer holds others that no loss reaches (a layer was replaced after it was made), or where no module has
    registered them (a list in place of a ModuleList, a parameter that `to()` made a plain tensor). Else a note: a part,
    or a network, that is fixed on purpose and has gradients that nobody uses."""
    found = steps.get("wiring", {}).get("unowned", ())
    if not steps.steps:
        return
    replaced = any(
        seen and all(i < len(s["parameters"]) and _is_unreached(s["parameters"][i]) for s in seen)
        for seen in steps.by_optimizer().values()
        for i in range(len(seen[-1]["parameters"]))
    )
    own = [p for p in found if not p["registered"] or p["beside_owned"] and replaced]
    rest = [p for p in found if p not in own]
    for make, parameters in ((warn, own), (note, rest)):
        if parameters:
            names = [p["name"] or f"one of shape {p['shape']}" for p in parameters]
            yield make(
                f"{len(names)} parameters get a gradient, belong to no optimizer and did not change in "
                f"{len(steps.steps)} steps: {', '.join(names[:4])}",
                "give them to the optimizer: after layers were replaced, with ModuleList and ParameterList in place of "
                "lists; where they are fixed on purpose, requires_grad_(False) saves their gradients",
                steps.at(steps.steps[-1]),
                parameters=names[:20],
            )


def _is_unreached(p):
    return p.get("trains", False) and p.get("none", False) and not p["reached"]
