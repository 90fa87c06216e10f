"""Does an optimizer own what gets a gradient?"""

from __future__ import annotations

from ..registry import check, note, warn


@check("P25", "parameters-owned", "steps")
def owned(steps):
    """Parameters that get a gradient, belong to no optimizer, and do not change over two steps and more, in a model of
    which other parts are trained, or that no module has registered (a list in place of a ModuleList). A network that is
    given to no optimizer at all is a note: a fixed one with gradients that nobody uses."""
    found = [p for p in steps.get("wiring", {}).get("unowned", ())]
    if not steps.steps:
        return
    own = [p for p in found if p["beside_owned"] or not p["registered"]]
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
