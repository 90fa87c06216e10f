"""What an optimizer was set to where it made a bad value: the parameter group, its hyper-parameters, and one that
cannot be."""

from __future__ import annotations

import math

from ..program import optimizer_members, step_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Findings, Fix, Optimizer

NO_SETTINGS = ("params", "param_names", "initial_lr")


def number(value: Any) -> float | None:
    """What a setting comes to: a number of Python, NumPy or fractions, a tensor with one element; None for anything
    else."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    if hasattr(value, "numel") and value.numel() != 1:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _number(value):
    return None if isinstance(value, bool) else number(value)


def _settings(group):
    """[(name, number)]: of a tuple each member."""
    found = []
    for key, value in group.items():
        if key in NO_SETTINGS:
            continue
        if isinstance(value, (tuple, list)):
            found += [(f"{key}[{i}]", n) for i, v in enumerate(value) if (n := _number(v)) is not None]
        elif (n := number(value) if key == "lr" else _number(value)) is not None:
            found.append((key, n))
    return found


def _group_of(optimizer, name):
    """(index, group) of a parameter, or of the one that some state belongs to."""
    owners = dict(zip(optimizer_members.names(optimizer), (id(p) for p in optimizer_members.parameters(optimizer))))
    while name not in owners and "." in name:
        name = name.rpartition(".")[0]
    for i, group in enumerate(optimizer.param_groups):
        if name in owners and any(id(p) == owners[name] for p in group["params"]):
            return i, group
    return None, None


def _impossible(settings):
    """The decay of an average is below 1: at 1 the bias correction, 1 - beta ** step, is zero, beyond it negative."""
    for name, value in settings:
        if name.startswith("beta") and value >= 1:
            return name, value
    return None


COUPLED = frozenset({"SGD", "AdamW"})  # decay that multiplies the weights themselves, by 1 - lr * weight_decay a step


# What a setting that makes weights grow with any gradient is to be; the others (momentum, betas): below 1.
SOUND = {"lr": "to 0 or above, and end the schedule where it ends", "weight_decay": "to 0 or above"}


def makes_grow(optimizer: Optimizer, group: dict[str, Any]) -> tuple[str, str, bool] | None:
    """(name, what it does, can a lower learning rate mend it) of a setting that makes weights grow by itself, whatever
    the gradients."""
    kind, named = type(optimizer).__name__, dict(_settings(group))
    decay, momentum, rate = named.get("weight_decay") or 0, named.get("momentum") or 0, named.get("lr") or 0
    if rate < 0 and not group.get("maximize") and step_wrapper.is_torchs(type(optimizer)):
        return (
            "lr",
            f"lr is {rate:g}, below zero (a schedule past its end?): each update goes up the gradient, and the loss "
            "grows",
            False,
        )
    if kind == "SGD" and abs(momentum) >= 1:
        return "momentum", f"momentum {momentum:g} adds up updates that never fade: below 1 they do", False
    if (wrong := _impossible(named.items())) is not None:
        return wrong[0], f"{wrong[0]} is {wrong[1]:g}, and an average decays only below 1", False
    # Of two that are too large together, the larger one is out of place.
    is_out_of_place = decay < 0 or decay >= rate
    if kind in COUPLED and is_out_of_place and not group.get("maximize") and abs(1 - rate * decay) > 1:
        return (
            "weight_decay",
            f"weight_decay {decay:g} at lr {rate:g} multiplies every weight by {1 - rate * decay:g} a step, "
            + (
                "which no learning rate mends: it is negative"
                if decay < 0
                else "so that it grows: lr x weight_decay has to stay below 2"
            ),
            decay > 0,
        )
    return None


def _growth(found: Findings, optimizer: Optimizer) -> None:
    """Weights that grew step by step: by the learning rate, or by another setting that would do so with any
    gradient."""
    count = len(optimizer.param_groups)
    rates = [number(group.get("lr")) or 0.0 for group in optimizer.param_groups]
    if len(set(rates)) > 1:
        found["cause"]["text"] += (
            f"; the highest rate is that of parameter group {rates.index(max(rates))}, {max(rates):g}"
        )
    for i, group in enumerate(optimizer.param_groups):
        setting = makes_grow(optimizer, group)
        if setting is None:
            continue
        name, why, by_rate = setting
        cause, of = found["cause"], f" of parameter group {i}" if count > 1 else ""
        cause["text"] += f"; {why}{of}"
        if not by_rate and name != "lr":
            cause["class"] = "optimizer-arithmetic"
        unknown: Fix = {"verified": False, "text": "", "file": "", "line": 0}
        found["fix"] = {
            **(found.get("fix") or unknown),
            "text": f"set {name}{of} "
            + ("to less than 2 / lr, or lower the learning rate" if by_rate else SOUND.get(name, "below 1")),
        }
        return


def _bad_schedule(found: Findings, optimizer: Optimizer) -> None:
    """A learning rate that is not finite because a scheduler holds such a number, as from a bad checkpoint: no division
    of the schedule made it."""
    rates = [number(group.get("lr")) for group in optimizer.param_groups]
    if all(rate is None or math.isfinite(rate) for rate in rates):
        return
    for scheduler in optimizer_members.schedulers([optimizer]):
        for name, value in vars(scheduler).items():
            members = [number(v) for v in (value if isinstance(value, (list, tuple)) else [value])]
            bad = [n for n in members if n is not None and not math.isfinite(n)]
            if (
                name in ("_last_lr", "best", "mode_worse") or not bad
            ):  # what came of it; how a search for the best begins
                continue
            kind = type(scheduler).__name__
            found["cause"]["text"] += f"; {name} of {kind} holds {bad[0]:g}"
            if fix := found.get("fix"):
                fix["text"] = (
                    f"give {name} of {kind} finite numbers; where they come from a checkpoint, load an earlier one"
                )
            return


def add_to(found: Findings, optimizer: Optimizer) -> None:
    """Adds to the cause of a birth in the optimizer which group it was in, and how that is set; to that of weights that
    grew, which setting makes them grow."""
    if found.get("births") and found["cause"]["class"] == "learning-rate":
        _growth(found, optimizer)
        _bad_schedule(found, optimizer)
    birth = found["births"][0] if found.get("births") else None
    if birth is None or birth["phase"] != "optimizer" or not birth.get("name"):
        return
    index, group = _group_of(optimizer, birth["name"])
    if group is None:
        return
    cause, settings, count = found["cause"], _settings(group), len(optimizer.param_groups)
    which = "" if count == 1 else f"parameter group {index} of {count}: "
    listed = ", ".join(f"{name} {value:g}" for name, value in settings[:12])
    cause["text"] += f"; writes {birth['name']} ({which}{listed})"
    wrong = _impossible(settings)
    if wrong is not None and cause["class"] == "optimizer-arithmetic":
        name, value = wrong
        cause["text"] += (
            f"; {name} is {value:g}, so that the bias correction 1 - {name} ** step divides by "
            f"{'zero' if value == 1 else 'less than zero'}"
        )
        at = found.get("fix") or birth
        found["fix"] = {
            "text": f"set {name}{f' of parameter group {index}' if count > 1 else ''} below 1",
            "verified": False,
            "file": at["file"],
            "line": at["line"],
        }
