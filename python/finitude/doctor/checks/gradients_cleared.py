"""Are gradients cleared between steps?"""

from __future__ import annotations

from ..registry import check, warn


@check("P27", "gradients-cleared", "steps")
def cleared(steps):
    """Gradients of one step that are still there when the next begins, so that each is the sum of all before; with the
    norm by step. What is accumulated between two steps is no fault."""
    for seen in steps.by_optimizer().values():
        later = [s for s in seen[1:] if s.get("backwards")]
        carried = [p["name"] for p in seen[-1]["parameters"] if p.get("carried")]
        if later and carried and all(any(p.get("carried") for p in s["parameters"]) for s in later):
            norms = [sum((p["grad"]["norm"] or 0) ** 2 for p in s["parameters"] if p["grad"]) ** 0.5 for s in seen]
            yield warn(
                f"{len(carried)} gradients of {seen[-1]['optimizer']} were not cleared after any of "
                f"{len(seen) - 1} steps: "
                f"each is the sum of all before (norm {norms[0]:.3g} at step {seen[0]['step']}, {norms[-1]:.3g} at "
                f"step {seen[-1]['step']})",
                "optimizer.zero_grad() in each step, of this optimizer and before backward()",
                steps.at(seen[-1]),
                parameters=carried[:20],
                norms=norms[:50],
            )
