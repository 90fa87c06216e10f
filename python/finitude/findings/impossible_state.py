"""Optimizer state that no run of that optimizer makes: a negative sum of squares, say after a bit of a checkpoint has
flipped."""

import inspect
import weakref

import torch

from ..program import discover
from ..program.counts import statistic

_seen = weakref.WeakKeyDictionary()  # optimizer -> what was found before the step that met it
_loaded = (
    weakref.WeakKeyDictionary()
)  # optimizer of the program's own -> each state with values below zero when it was loaded
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
    for i, p in enumerate(discover.parameters(optimizer)):
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key in (state if keys is None else keys) if state else ():
            value = state.get(key)
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
                continue
            if not (below := value < 0).any():
                continue
            index = below.nonzero()[0].tolist()
            yield {
                "name": f"{discover.names(optimizer)[i]}.{key}",
                "tensor": value,
                "index": index,
                "value": float(value[tuple(index)]),
                "count": int(below.sum()),
                "of": value.numel(),
            }


def _look(optimizer):
    """{"name", "text", "held": its statistics}, or None."""
    one = next(_below_zero(optimizer, _keys(optimizer)), None)
    return one and {
        "name": one["name"],
        "text": _text(one, optimizer),
        "held": statistic(one["name"], one["tensor"]),
        "confidence": "proven",
    }


def note(optimizer):
    """Its state is as it was loaded: the step that meets it has not been, or has been undone."""
    _seen.pop(optimizer, None)
    if found := _look(optimizer):
        _seen[optimizer] = found


def note_loaded(optimizer):
    """Behind load_state_dict. What an optimizer of the program's own keeps may be negative; its step may show that it
    must not be."""
    note(optimizer)
    if not _keys(optimizer):
        _loaded[optimizer] = [
            {**one, "held": statistic(one["name"], one.pop("tensor"))} for one in _below_zero(optimizer, None)
        ]


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
                "below zero, so that the loaded state is corrupt"
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
        "negative, so that the state is corrupt"
    )


def tell(found, optimizer):
    """Into the findings of a birth in the optimizer."""
    birth = found["births"][0] if found.get("births") else {}
    if birth.get("phase") != "optimizer" or found["cause"]["class"] == "learning-rate":
        return
    if (one := _seen.get(optimizer) or _look(optimizer) or _rooted(birth, optimizer)) is None:
        return
    found["births"].insert(
        0,
        {
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
        },
    )
    for experiment in found["cause"]["experiments"]:
        experiment.pop("confirms", None)  # what it says of that call says nothing of this
    found["cause"] = {
        **found["cause"],
        "class": "corrupted-state",
        "confidence": one["confidence"],
        "text": one["text"],
    }
    found["fix"] = {
        "text": "load an earlier checkpoint, or load the weights alone and let the optimizer begin with new state",
        "verified": False,
        "file": "",
        "line": 0,
    }


def tell_alarm(alarm, optimizer):
    """The value as it was before the step, where a second run saw it after."""
    if optimizer is None or (one := _seen.pop(optimizer, None)) is None:
        return
    if alarm["sink"]["kind"] in ("parameter", "state") and alarm["cause"]["class"] != "learning-rate":
        alarm["cause"] = {**alarm["cause"], "class": "corrupted-state", "confidence": "proven", "text": one["text"]}
