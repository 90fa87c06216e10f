"""Do steps change the parameters?"""

from __future__ import annotations

from ..registry import check, note, warn

FEWEST = 2  # a warm-up that begins at 0 has one step without any change


@check("P26", "parameters-move", "steps")
def move(steps):
    """An optimizer whose steps change none of its parameters, though they have gradients that are not zero, in two
    steps and more, with the learning rate; a part of them that no step changes is a note. An optimizer with momentum
    that is made again before each step, so that it never has any."""
    for seen in steps.by_optimizer().values():
        over = [s for s in seen if s["update"] and "kept" in s["update"]]
        if len(over) < FEWEST:
            continue
        last = over[-1]
        kept = set.intersection(*(set(s["update"]["kept"]) for s in over))
        if kept and not any(s["update"]["changed"] for s in over):
            rates = sorted({s["lr"] for s in over})
            yield warn(
                f"{len(over)} steps of {last['optimizer']} changed none of its {len(last['parameters'])} "
                f"parameters, at "
                f"learning rate {', '.join(f'{r:g}' for r in rates[:3])}, though {len(kept)} have gradients",
                "the learning rate and its schedule; an update smaller than the spacing of the weights' dtype",
                steps.at(last),
                parameters=sorted(kept)[:20],
                lr=rates[:20],
            )
        elif kept:
            yield note(
                f"{len(over)} steps of {last['optimizer']} never changed {len(kept)} of {len(last['parameters'])} "
                f"parameters that have gradients: {', '.join(sorted(kept)[:4])}",
                "the learning rate of their group; an update smaller than the spacing of the weights' dtype",
                steps.at(last),
                parameters=sorted(kept)[:20],
            )
    yield from _made_again(steps)


def _made_again(steps):
    by_owned = {}
    for one in steps.get("wiring", {}).get("made", ()):
        by_owned.setdefault((one["optimizer"], *one["owned"]), []).append(one)
    for made in by_owned.values():
        counts = [one["steps"] for one in made]
        between = [b - a for a, b in zip(counts, counts[1:])]
        if made[0]["keeps"] and len(between) >= FEWEST and all(n == 1 for n in between):
            yield warn(
                f"{made[0]['optimizer']} was made {len(made)} times for the same parameters, with one step in between: "
                "its momentum begins at zero in each",
                "make the optimizer once, before the loop",
                steps.at(made[-1]),
                made=len(made),
            )
