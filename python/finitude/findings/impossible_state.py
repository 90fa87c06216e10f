"""Optimizer state that no run of that optimizer makes: a negative sum of squares, say after a bit of a checkpoint has flipped."""

import inspect
import weakref

import torch

from ..program import discover
from ..program.counts import statistic

_seen = weakref.WeakKeyDictionary()    # optimizer -> what was found before the step that met it
_SQUARES = {"Adam": ("exp_avg_sq", "max_exp_avg_sq"), "AdamW": ("exp_avg_sq", "max_exp_avg_sq"), "NAdam": ("exp_avg_sq",), "RAdam": ("exp_avg_sq",),
            "SparseAdam": ("exp_avg_sq",), "Adamax": ("exp_inf",), "RMSprop": ("square_avg",), "Adagrad": ("sum",),
            "Adadelta": ("square_avg", "acc_delta"), "Adafactor": ("row_var", "col_var", "variance")}


def _keys(optimizer):
    """Of state that is never below zero, where the step is that of torch's class: what another step keeps under these names may be."""
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    for name, keys in _SQUARES.items():
        base = getattr(torch.optim, name, None)
        if base is not None and isinstance(optimizer, base) and code is getattr(inspect.unwrap(base.step), "__code__", 0):
            return (*keys, "step")
    return ()


@torch.no_grad()
def _find(optimizer):
    """{"name", "tensor", "index", "value", "count"} of the first such state, or None."""
    keys = _keys(optimizer)
    for i, p in enumerate(discover.parameters(optimizer)):
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key in keys if state else ():
            value = state.get(key)
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
                continue
            if not (below := value < 0).any():
                continue
            name = discover.names(optimizer)[i]
            index = below.nonzero()[0].tolist()
            return {"name": f"{name}.{key}", "tensor": value, "index": index, "value": float(value[tuple(index)]), "count": int(below.sum()),
                    "of": value.numel()}
    return None


def _look(optimizer):
    """{"name", "text", "held": its statistics}, or None."""
    one = _find(optimizer)
    return one and {"name": one["name"], "text": _text(one, optimizer), "held": statistic(one["name"], one["tensor"])}


def note(optimizer):
    """Its state is as it was loaded: the step that meets it has not been, or has been undone."""
    _seen.pop(optimizer, None)
    if found := _look(optimizer):
        _seen[optimizer] = found


def _text(one, optimizer):
    parameter, _, key = one["name"].rpartition(".")
    of = f"{key} of {parameter}" + (f" at {one['index']}" if one["index"] else "")
    more = f" ({one['count']} of {one['of']} values are negative)" if one["count"] > 1 else ""
    kind = "a count of steps" if key == "step" else "an average or a sum of squares" if key not in ("exp_inf", "max_exp_avg_sq") else "a largest magnitude"
    return f"{of} is {one['value']:.6g}{more}: it is {kind}, which no step of {type(optimizer).__name__} makes negative, so that the state is corrupt"


def tell(found, optimizer):
    """Into the findings of a birth in the optimizer."""
    birth = found["births"][0] if found.get("births") else {}
    if birth.get("phase") != "optimizer" or found["cause"]["class"] == "learning-rate":
        return
    if (one := _seen.get(optimizer) or _look(optimizer)) is None:
        return
    found["births"].insert(0, {"phase": "state", "op": "", "file": "", "line": 0, "source": "", "module": "", "node": "", "name": one["name"],
                               "inputs": [], "outputs": [one["held"]] if one["held"] else [], "rows": []})
    for experiment in found["cause"]["experiments"]:
        experiment.pop("confirms", None)   # what it says of that call says nothing of this
    found["cause"] = {**found["cause"], "class": "corrupted-state", "confidence": "proven", "text": one["text"]}
    found["fix"] = {"text": "load an earlier checkpoint, or load the weights alone and let the optimizer begin with new state",
                    "verified": False, "file": "", "line": 0}


def tell_alarm(alarm, optimizer):
    """The value as it was before the step, where a second run saw it after."""
    if optimizer is None or (one := _seen.pop(optimizer, None)) is None:
        return
    if alarm["sink"]["kind"] in ("parameter", "state") and alarm["cause"]["class"] != "learning-rate":
        alarm["cause"] = {**alarm["cause"], "class": "corrupted-state", "confidence": "proven", "text": one["text"]}
