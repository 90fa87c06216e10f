"""Optimizer state that no run of that optimizer makes: a negative sum of squares, say after a bit of a checkpoint has
flipped."""

from __future__ import annotations

import inspect
import weakref

import torch

from .. import _native
from ..base import sources
from ..base.kinds import is_a
from ..program import checkpoint_origin, optimizer_members
from ..program.tensor_stats import statistic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import Alarm, Experiment, Findings, Operation, Optimizer

seen = weakref.WeakKeyDictionary()  # optimizer -> what was found before the step that met it
_loaded = (
    weakref.WeakKeyDictionary()
)  # optimizer of the program's own -> each state with values below zero when it was loaded
_CORRUPT = "is corrupt"
ROUNDING = 1e-2  # averages of many steps are that exact in any format
_ROOTS = {"sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow"}  # NaN below zero
_SQUARES = {
    "Adam": ("exp_avg_sq", "max_exp_avg_sq"),
    "AdamW": ("exp_avg_sq", "max_exp_avg_sq"),
    "NAdam": ("exp_avg_sq",),
    "RAdam": ("exp_avg_sq",),
    "SparseAdam": ("exp_avg_sq",),
    "Adamax": ("exp_inf",),
    "RMSprop": ("square_avg",),
    "Adagrad": ("sum",),
    "Adadelta": ("square_avg", "acc_delta"),
    "Adafactor": ("row_var", "col_var", "variance"),
}


def _keys(optimizer):
    """Of state that is never below zero, where the step is that of torch's class: what another step keeps under these
    names may be."""
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    for name, keys in _SQUARES.items():
        base = getattr(torch.optim, name, None)
        if (
            base is not None
            and isinstance(optimizer, base)
            and code is getattr(inspect.unwrap(base.step), "__code__", 0)
        ):
            return (*keys, "step")
    return ()


@torch.no_grad()
def _below_zero(optimizer, keys):
    """{"name", "tensor", "index", "value", "count", "of"} of each state under these keys, None: under any, that has
    negative values."""
    for i, p in enumerate(optimizer_members.parameters(optimizer)):
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key in (state if keys is None else keys) if state else ():
            value = state.get(key)  # type: ignore[union-attr]  # without a state there are no keys
            if not is_a(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
                continue
            if not (below := value < 0).any():
                continue
            index = below.nonzero()[0].tolist()
            yield {
                "name": f"{optimizer_members.names(optimizer)[i]}.{key}",
                "tensor": value,
                "index": index,
                "value": float(value[tuple(index)]),
                "count": int(below.sum()),
                "of": value.numel(),
            }


@torch.no_grad()
def _larger_than_squares(optimizer):
    """As of `look`, of a centred RMSprop: both averages begin at 0 and have the same weights, so that the square of the
    one is no larger than the other, which is what its root is taken of."""
    if "square_avg" not in _keys(optimizer) or not any(group.get("centered") for group in optimizer.param_groups):
        return
    for name, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
        state = optimizer.state.get(p) or {}
        mean, squares = state.get("grad_avg"), state.get("square_avg")
        if mean is None or squares is None or mean.is_complex() or mean.shape != squares.shape:
            continue
        above = mean.square() > squares * (1 + ROUNDING) + torch.finfo(mean.dtype).tiny
        if not above.any():
            continue
        at = above.nonzero()[0].tolist()
        one, other = float(mean[tuple(at)]), float(squares[tuple(at)])
        more = f" ({int(above.sum())} of {mean.numel()} values are so)" if int(above.sum()) > 1 else ""
        text = (
            f"grad_avg of {name}"
            + (f" at {at}" if at else "")
            + f" is {one:.6g}, and square_avg there {other:.6g}{more}: "
            f"no step of {type(optimizer).__name__} makes the square of an average larger than the average of the "
            f"squares, so that the state {_CORRUPT}"
        )
        held = statistic(f"{name}.grad_avg", mean)
        yield {"name": f"{name}.grad_avg", "text": text, "held": held, "confidence": "proven"}


def look(optimizer: Optimizer | None) -> dict[str, Any] | None:
    """What is wrong with its state now, or was before the step that met it: {"name", "text", "held": its statistics},
    or None."""
    if optimizer is None or optimizer in seen:
        return seen.get(optimizer)
    one = next(_below_zero(optimizer, _keys(optimizer)), None)
    if one is None:
        return next(_larger_than_squares(optimizer), None)
    return {
        "name": one["name"],
        "text": _text(one, optimizer),
        "held": statistic(one["name"], one["tensor"]),
        "confidence": "proven",
    }


def note(optimizer: Optimizer) -> None:
    """Its state is as it was loaded: the step that meets it has not been, or has been undone."""
    seen.pop(optimizer, None)
    if found := look(optimizer):
        seen[optimizer] = found


def note_loaded(optimizer: Optimizer) -> None:
    """Behind load_state_dict. What an optimizer of the program's own keeps may be negative; its step may show that it
    must not be. No operation that looks at it is one of the program's line."""
    observed = _native.observe_operators(False)
    try:
        note(optimizer)
        if not _keys(optimizer):
            _loaded[optimizer] = [
                {**one, "held": statistic(one["name"], one.pop("tensor"))} for one in _below_zero(optimizer, None)
            ]
    finally:
        _native.observe_operators(observed)


def _rooted(birth, optimizer):
    """The loaded state of which the birth takes a root or logarithm: the values below zero there are as many as the NaN
    here. A first moment, say, is negative in many more places."""
    made = next(iter(birth["outputs"]), None)
    if birth["op"].removeprefix("aten::").removeprefix("_foreach_").removesuffix("_") not in _ROOTS or not made:
        return None
    for one in _loaded.get(optimizer, ()):
        held = one["held"]
        if (
            held
            and held["shape"] == made["shape"]
            and one["count"] == made["nan"]
            and (one["index"] or [0])[0] in (birth["rows"] or [0])
        ):
            what = (
                f"{birth['op']} in the step of {type(optimizer).__name__} makes NaN where it is "
                f"below zero, so that the loaded state {_CORRUPT}"
            )
            return {"name": one["name"], "text": f"{_where(one)}: {what}", "held": held, "confidence": "likely"}
    return None


def _where(one):
    """ "exp_avg_sq of 0.weight at [3, 2] is -0.25"."""
    parameter, _, key = one["name"].rpartition(".")
    more = f" ({one['count']} of {one['of']} values are negative)" if one["count"] > 1 else ""
    return f"{key} of {parameter}" + (f" at {one['index']}" if one["index"] else "") + f" is {one['value']:.6g}{more}"


def _text(one, optimizer):
    key = one["name"].rpartition(".")[2]
    kind = (
        "a count of steps"
        if key == "step"
        else "an average or a sum of squares"
        if key not in ("exp_inf", "max_exp_avg_sq")
        else "a largest magnitude"
    )
    return (
        f"{_where(one)}: it is {kind}, which no step of {type(optimizer).__name__} makes "
        f"negative, so that the state {_CORRUPT}"
    )


def add_to(found: Findings, optimizer: Optimizer, ops: Sequence[Operation] = ()) -> None:
    """Into the findings of a birth in the optimizer."""
    birth = found["births"][0] if found.get("births") else None
    if birth is None or birth["phase"] != "optimizer" or found["cause"]["class"] == "learning-rate":
        return
    if (one := look(optimizer) or _rooted(birth, optimizer)) is None or _is_written_by(birth, one["held"]):
        return
    writer = _writer(one, ops) if checkpoint_origin.was_loaded(optimizer) is False else None
    found["births"].insert(0, _birth(one, writer))
    for experiment in found["cause"]["experiments"]:
        experiment.pop("confirms", None)  # what it says of that call says nothing of this
    parameter, _, key = one["name"].rpartition(".")
    looked: Experiment = {
        "name": f"{key} of {parameter}, looked at",
        "outcome": "no step makes it so",
        "confirms": True,
    }
    found["cause"] = {
        **found["cause"],
        "experiments": [looked] * (one["confidence"] == "proven") + found["cause"]["experiments"],
        "class": "corrupted-state",
        "confidence": one["confidence"],
        "text": one["text"] + (f"; {writer['op']} made it so, outside of the optimizer's step" if writer else ""),
    }
    found["fix"] = {
        "text": _fix(one, optimizer, writer),
        "verified": False,
        "file": writer["file"] if writer else "",
        "line": writer["line"] if writer else 0,
    }


@torch.no_grad()
def add_variance(found: Findings, optimizer: Optimizer) -> None:
    """Into the findings of a normalisation layer that takes the root of running statistics: a variance below zero,
    which no training step makes."""
    birth = found["births"][0] if found.get("births") else None
    if birth is None or "_norm" not in birth["op"] or found["cause"]["class"] not in ("unknown", "negative-domain"):
        return
    for name, buffer in optimizer_members.buffers(optimizer):
        if not name.endswith("running_var") or not buffer.is_floating_point() or not (below := buffer < 0).any():
            continue
        index = below.nonzero()[0].tolist()
        one = {"name": name, "index": index, "value": float(buffer[tuple(index)]), "of": buffer.numel()}
        one.update({"count": int(below.sum()), "held": statistic(name, buffer)})
        state = _birth(one, None)
        state["file"], state["line"], state["source"] = birth["file"], birth["line"], birth["source"]
        state["module"] = birth["module"]
        found["births"].insert(0, state)
        found["cause"] = {
            **found["cause"],
            "class": "corrupted-state",
            "confidence": "proven",
            "text": f"{_where(one)}: it is a variance, which no step makes negative, so that the state {_CORRUPT}; "
            f"{birth['op']} takes its root",
        }
        fix = "load an earlier checkpoint, or let the layer begin with new statistics: reset_running_stats()"
        found["fix"] = {"text": fix, "verified": False, "file": "", "line": 0}
        return


def _is_written_by(birth, held):
    """Is what was found after the step the output of the birth itself? Then the state was sound before it."""
    alike = ("shape", "dtype", "min", "max", "nan", "pos_inf", "neg_inf")
    return bool(held) and any(all(made.get(k) == held.get(k) for k in alike) for made in birth["outputs"])


def _writer(one, ops):
    """The operation of the program, no part of a step, after which that state had values below zero, or None."""
    for op in ops:
        own = next((u for u in op["inputs"] if u.get("text") == one["name"]), None)
        if own is None or op["phase"] != "forward" or op.get("view") or not op["file"]:
            continue
        made = next((u for u in op["outputs"] if u.get("storage") == own["storage"]), None)
        if made and (made["min"] or 0) < 0 and not (own["numel"] and (own["min"] or 0) < 0):
            return {**op, "held": made}
    return None


def _birth(one, writer):
    birth = {
        "phase": "state",
        "op": "",
        "file": "",
        "line": 0,
        "source": "",
        "module": "",
        "node": "",
        "name": one["name"],
        "inputs": [],
        "outputs": [one["held"]] if one["held"] else [],
        "rows": [],
    }
    if writer:
        place = {key: writer[key] for key in ("op", "file", "line")}
        held = [{**{key: writer["held"][key] for key in one["held"]}, "arg": one["name"]}] if one["held"] else []
        birth.update(place, source=sources.line(writer["file"], writer["line"]), outputs=held)
    return birth


def _fix(one, optimizer, writer):
    key = one["name"].rpartition(".")[2]
    if writer:
        wrong = "values below zero" if key != "grad_avg" else "values larger than its gradients were"
        return f"write no {wrong} into {key} of the optimizer's state at this line"
    look_at = f"look at what the program writes into {key} of the optimizer's state"
    earlier = "load an earlier checkpoint, or load the weights alone and let the optimizer begin with new state"
    was_loaded = checkpoint_origin.was_loaded(optimizer)
    if was_loaded is None:
        return f"{look_at}; where it comes from a checkpoint, {earlier}"
    return earlier if was_loaded else f"{look_at}: its load_state_dict was not called"


def add_to_alarm(alarm: Alarm, optimizer: Optimizer) -> None:
    """The value as it was before the step, where a second run saw it after. Of an optimizer in `seen`."""
    one = seen.pop(optimizer)
    if alarm["sink"]["kind"] in ("parameter", "state") and alarm["cause"]["class"] != "learning-rate":
        by_whom = alarm["cause"]["text"].partition(_CORRUPT)[2]  # by whom
        text = one["text"] + by_whom
        alarm["cause"] = {**alarm["cause"], "class": "corrupted-state", "confidence": "proven", "text": text}
