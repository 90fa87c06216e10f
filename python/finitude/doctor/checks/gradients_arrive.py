"""Does what an optimizer owns get a gradient?"""

from __future__ import annotations

from ..registry import bad, check, note, warn

ENDED = 10  # steps without any gradient behind one that had one
LONG = 20  # steps after which a part that never had a gradient is more than off for the moment
ADVICE_CUT = (
    "compute with the tensor itself: no detach(), item(), numpy() or no_grad() between the parameter and the loss"
)


def _empty(p):
    return not p["given"]


@check("P24", "gradients-arrive", "steps")
def arrives(steps):
    """An optimizer that finds no gradient in any step, or none in ten and more after it did: cleared between
    backward and step, a loss that is connected to none of its parameters, or all of them frozen. Parameters that
    the loss is computed from and that never get a gradient, with the operation where autograd loses them; or that
    are behind an operation whose derivative is zero everywhere (`round`, `sign`). Parameters that no loss reaches
    (a note; over 20 steps a warning); never frozen ones."""
    for seen in steps.by_optimizer().values():
        last = seen[-1]
        if "backwards" not in last or not last["parameters"]:
            continue
        if not any(p["trains"] for s in seen for p in s["parameters"]):
            yield bad(
                f"{last['optimizer']} owns {len(last['parameters'])} parameters and all have requires_grad=False: its "
                f"{len(seen)} steps change nothing",
                "requires_grad_(True) for what is to be trained, or no such optimizer",
                steps.at(last),
                parameters=[p["name"] for p in last["parameters"]][:20],
            )
        elif all(_empty(p) for s in seen for p in s["parameters"]) and any(s["backwards"] for s in seen):
            yield from _nothing(steps, seen)
        else:
            yield from _parts(steps, seen)
            yield from _ended(steps, seen)


def _ended(steps, seen):
    """Gradients that no longer come, while backward still runs."""
    tail = seen[-ENDED:]
    if len(seen) <= ENDED or any(not s["backwards"] or any(not _empty(p) for p in s["parameters"]) for s in tail):
        return
    last = next(s for s in reversed(seen) if not all(map(_empty, s["parameters"])))
    if all(p["trains"] for s in tail for p in s["parameters"]):
        yield warn(
            f"{last['optimizer']} found no gradient in the last {len(seen) - 1 - seen.index(last)} steps, "
            "and did before",
            ADVICE_CUT + "; set_grad_enabled(True) after a validation",
            steps.at(tail[-1]),
            parameters=[p["name"] for p in last["parameters"]][:20],
        )


def _nothing(steps, seen):
    last = seen[-1]
    of = f"{last['optimizer']} found no gradient in {len(seen)} steps"
    names = [p["name"] for p in last["parameters"]]
    cleared = [p["name"] for p in last["parameters"] if p["arrived"]]
    cuts = [p for s in seen for p in s["parameters"] if p["cut"]]
    if cleared:
        yield bad(
            f"{of}, though backward() gave {len(cleared)} of its {len(names)} parameters one: they were cleared "
            f"in between",
            "zero_grad() before backward() or after step(), not between them",
            steps.at(last),
            parameters=cleared[:20],
        )
    elif cuts:
        operation, file, line = cuts[0]["cut"]
        yield bad(
            f"{of}: the loss is computed from {cuts[0]['name']}, but autograd loses it after {operation}",
            ADVICE_CUT,
            (file, line),
            parameters=names[:20],
            operation=operation,
        )
    elif not any(p["reached"] for s in seen for p in s["parameters"]):
        yield bad(
            f"{of}: no loss depends on its {len(names)} parameters ({', '.join(names[:3])})",
            "give it the parameters of the model that computes the loss, after the last layer was replaced or copied; "
            "build the loss of tensors, not of numbers",
            steps.at(last),
            parameters=names[:20],
        )


def _parts(steps, seen):
    """Of an optimizer that trains something."""
    last = seen[-1]
    never = [
        p
        for i, p in enumerate(last["parameters"])
        if p["trains"]
        and all(i < len(s["parameters"]) and s["parameters"][i]["none"] for s in seen)
        and not any(s["parameters"][i]["reached"] for s in seen)
    ]
    cut: dict[tuple, list[str]] = {}
    for p in never:
        if p["cut"]:
            cut.setdefault(tuple(p["cut"]), []).append(p["name"])
    for (operation, file, line), names in cut.items():
        yield warn(
            f"{len(names)} parameters never got a gradient in {len(seen)} steps though the loss is computed from them "
            f"({', '.join(names[:3])}): autograd loses them after {operation}",
            ADVICE_CUT + "; requires_grad_(False) where they are not to be trained",
            (file, line),
            parameters=names[:20],
            operation=operation,
            steps=len(seen),
        )
    unused = [p["name"] for p in never if not p["cut"]]
    if unused:
        ran = [p["name"] for p in never if not p["cut"] and p["ran"]]
        make = warn if len(seen) >= LONG else note
        more = f"; the modules of {len(ran)} of them run, and the loss does not use what they return" if ran else ""
        yield make(
            f"{len(unused)} of {len(last['parameters'])} parameters of {last['optimizer']} were reached by no loss in "
            f"{len(seen)} steps: {', '.join(unused[:4])}{more}",
            "use them, or do not make them; requires_grad_(False) where it is meant",
            steps.at(last),
            parameters=unused[:20],
            ran=ran[:20],
            steps=len(seen),
        )
    yield from _flat(steps, seen)


def _flat(steps, seen):
    last = seen[-1]
    names = [
        p["name"]
        for i, p in enumerate(last["parameters"])
        if p["flat"] and all(i < len(s["parameters"]) and _empty(s["parameters"][i]) for s in seen)
    ]
    for operation, at in list(last["flat"].items())[:1] if names else ():
        yield warn(
            f"{len(names)} parameters have a gradient of exactly zero in {len(seen)} steps "
            f"({', '.join(names[:3])}): all "
            f"their ways to the loss pass {operation}, whose derivative is zero",
            f"a straight-through estimator: x + (x.{operation}() - x).detach()",
            tuple(at),
            parameters=names[:20],
            operation=operation,
        )
