"""Are weights that should be one parameter one?"""

from __future__ import annotations

from ..registry import check, warn


@check("P31", "tied-weights", "steps")
def tied(steps):
    """Two parameters of an optimizer that are one memory, so that each gets a part of the gradient and both are
    written; a model whose configuration ties input and output embedding and whose two are different parameters; an
    embedding and an output layer that begin equal and then differ. Layers that are copies of each other begin equal and
    are no fault."""
    facts = steps.get("wiring", {})
    at = steps.at(steps.steps[0]) if steps.steps else None
    for pair in facts.get("ties", ()):
        yield warn(
            f"{pair[0]} and {pair[1]} are two parameters in one memory: the optimizer writes it twice in each "
            f"step, each "
            "time for a part of the gradient",
            "assign the parameter itself: head.weight = embedding.weight",
            at,
            parameters=pair,
        )
    for one in facts.get("untied", ()):
        yield warn(
            f"the configuration of {one['module']} ties input and output embedding, but they are two parameters",
            "model.tie_weights() after weights or layers were replaced",
            at,
            module=one["module"],
        )
    for one in facts.get("copies", ()):
        if one["differ"]:
            yield warn(
                f"{one['embedding']} and {one['layer']} were equal in all {one['numel']} elements before the "
                f"first step and "
                "are trained separately since",
                "assign the parameter itself, not a copy: head.weight = embedding.weight",
                at,
                parameters=[one["embedding"], one["layer"]],
            )
