"""Weights that moved by far more than the learning rate and the gradients come to. Of an optimizer of the program's:
its own arithmetic, a division by almost nothing; its line is found in its source, and the state that is zero where the
gradient is not. Of one of torch's: the state that it was given, or something else that writes the weights."""

from __future__ import annotations

import ast
import inspect
import math
import typing

import torch

from ..base import sources
from ..base._places import is_library
from ..base.kinds import is_a
from ..program import optimizer_members, step_wrapper
from . import hyperparameters
from .branches import Branches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..base.types import AppliedSteps, Findings, Optimizer

OWN_STEP_SIZE = (torch.optim.LBFGS, torch.optim.Rprop)  # their updates follow from no learning rate
BEYOND = 1e3  # times the sum of lr x max(1, largest gradient) over all steps
BESIDE_ZERO = (
    10  # the same where it divides by state that is zero: the gradients that follow are as large as the weights
)
SMALL = 1e-8  # of the largest value of that state: next to nothing
GROWN = 10.0  # times the largest weight at the start
FOLLOWS = frozenset(
    {
        "learning-rate",
        "exp-overflow",
        "overflow",
        "exploding-gradient",
        "log-of-zero",
        "log-of-negative",
        "negative-domain",
        "division-by-zero",
        "domain-edge",
        "underflow",
        "zero-times-infinity",
        "infinity-minus-infinity",
        "degenerate-linalg",
        "unknown",
    }
)


def add_to(found: Findings, optimizer: Optimizer, start: Mapping[int, float], steps: AppliedSteps) -> None:
    """Into findings of what such weights led to. start: {id of a parameter: its magnitude before the first step};
    steps: (step, loss, largest gradient, learning rate) of the applied ones."""
    if not found.get("births") or not _may_follow(found) or isinstance(optimizer, OWN_STEP_SIZE):
        return
    if not start or not steps or steps[0][0] != 0 or steps[-1][0] != len(steps) - 1:
        return  # older steps are not known
    if found["births"][0]["phase"] == "optimizer" and len(steps) > 1:
        steps = steps[:-1]  # the last overflowed, on gradients of weights that the ones before it have made
    by_rate = sum(abs(rate) * max(1.0, gradient) for _, _, gradient, rate in steps)
    by_rate *= _largest_rate(optimizer, steps[-1][3])
    now = optimizer_members.magnitudes(optimizer)
    moved = {p: now[p] - before for p, before in start.items() if p in now}
    worst = max(moved, key=moved.__getitem__, default=None)
    if (
        worst is None
        or not math.isfinite(by_rate)
        or not 0 < BESIDE_ZERO * by_rate <= moved[worst]
        or moved[worst] < GROWN * max(start.values())
    ):
        return
    names = dict(zip(map(id, optimizer_members.parameters(optimizer)), optimizer_members.names(optimizer)))
    parameter = next(p for p in optimizer_members.parameters(optimizer) if id(p) == worst)
    of = _Moved(names.get(worst, ""), parameter, moved[worst], by_rate, steps)
    if step_wrapper.is_torchs(type(optimizer)):
        if of.by >= BEYOND * by_rate and not any(
            hyperparameters.makes_grow(optimizer, group) for group in optimizer.param_groups
        ):
            _explain_outside(found, optimizer, of)
    else:
        _explain_arithmetic(found, optimizer, of)


def _may_follow(found):
    """Also an overflow inside the optimizer (is_overflow: src/explain/finding.h): of gradients that are as large as the
    weights that it has made."""
    cause = found["cause"]["class"]
    return cause in FOLLOWS or cause == "optimizer-arithmetic" and found.get("is_overflow", False)


class _Moved(typing.NamedTuple):
    """The parameter that moved most."""

    name: str
    parameter: torch.Tensor
    by: float
    by_rate: float  # what learning rate x gradient is
    steps: list

    def words(self) -> str:
        count = len(self.steps)
        in_steps = f"in {count} step{'s' * (count > 1)}"
        return f"by {self.by:.3g} {in_steps}, where learning rate x gradient is {self.by_rate:.3g}"


def _explain_outside(found, optimizer, of):
    """An optimizer of torch's does not move weights so far: state that it was given does, or the program."""
    kind, largest = type(optimizer).__name__, max(gradient for _, _, gradient, _ in of.steps)
    state = {
        key: magnitude
        for key, magnitude in _magnitudes(optimizer, of.parameter)
        if not magnitude <= BEYOND * max(1.0, largest) ** 2
    }
    if state:
        key = max(state, key=state.__getitem__)
        text = (
            f"{kind}.step moved {of.name} {of.words()}: its state {key} of {of.name} is as large as {state[key]:.3g}, "
            f"which no gradient of these steps makes (the largest is {largest:.3g}): that state is corrupt"
        )
        fix = "load an earlier checkpoint, or load the weights alone and let the optimizer begin with new state"
    else:
        text = (
            f"{of.name} moved {of.words()}: no update of {kind} does that. Something else writes it between the steps "
            "of the optimizer"
        )
        fix = (
            f"look at what writes {of.name} besides the optimizer: load_state_dict, .data, an operation in place, NumPy"
        )
    _replace(found, "corrupted-state", text, {"text": fix, "verified": False, "file": "", "line": 0})


@torch.no_grad()
def _magnitudes(optimizer, p):
    """(key, largest magnitude) of its state, but for a count of steps."""
    state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
    for key, value in state.items() if isinstance(state, dict) else ():
        if key != "step" and is_a(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            yield key, float(value.abs().max())


def _replace(found, cause, text, fix):
    for experiment in found["cause"]["experiments"]:
        experiment.pop("confirms", None)  # what it says of the overflow says nothing of this
    sign = (
        found["cause"]["text"].partition("What follows from that: ")[2]
        or found["births"][0]["op"] + " is where it shows"
    )
    text = f"{text}. What follows from that: {sign}"
    found["cause"] = {**found["cause"], "class": cause, "confidence": "likely", "text": text}
    found["fix"] = fix


def _explain_arithmetic(found, optimizer, of):
    """An optimizer of the program's or of another library: its own arithmetic."""
    name, parameter, kind = of.name, of.parameter, type(optimizer).__name__
    zero, small = _zero_state(optimizer, parameter), _small_state(optimizer, parameter)
    ran = {(b["file"], b["line"]) for b in found["births"] if b["phase"] == "optimizer"}
    place, keys = _division(optimizer, [*zero, *small], ran)
    if not keys and of.by < BEYOND * of.by_rate:
        return
    zero = [key for key in zero if key in keys] or zero
    small = {key: value for key, value in small.items() if key in keys} if not zero else {}
    text = f"{kind}.step moved {name} {of.words()}: its own arithmetic makes the update, not the learning rate"
    if zero:
        text += f"; its state {', '.join(zero)} of {name} is 0 where the gradient is not"
    for key, (there, largest) in small.items():
        text += f"; its state {key} of {name} is {there:.3g} where {name} is largest, and {largest:.3g} elsewhere"
    if place is not None:
        file, line = place
        text += f"; it divides at {file.rpartition('/')[2]}:{line}: {sources.line(file, line)}"
    fix = (
        f"keep {next(iter([*zero, *small]))} away from 0 there: refresh it in each step, or add an epsilon of the "
        "order of the gradients"
        if zero or small
        else "add an epsilon of the order of the gradients to what the update is divided by"
    )
    file, line = place or ("", 0)
    _replace(found, "optimizer-arithmetic", text, {"text": fix, "verified": False, "file": file, "line": line})


def _largest_rate(optimizer, recorded):
    """How many times the rate in the ring of steps, which is that of the first group, the largest rate is."""
    rates = [abs(hyperparameters.number(group.get("lr")) or 0.0) for group in optimizer.param_groups]
    return max([1.0, *(rate / abs(recorded) for rate in rates)]) if recorded else 1.0


@torch.no_grad()
def _zero_state(optimizer, p):
    """Keys of its state that are 0 in places where the gradient is not."""
    state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
    found = []
    for key, value in state.items() if isinstance(state, dict) else ():
        if key == "step" or not isinstance(key, str):
            continue
        if isinstance(value, float):
            zero = torch.tensor(value == 0)
        elif is_a(value, torch.Tensor) and value.layout is torch.strided:
            zero = value == 0
        else:
            continue
        try:
            if (zero & (p.grad != 0) if p.grad is not None and not p.grad.is_sparse else zero).any():
                found.append(key)
        except RuntimeError:  # of another shape
            if zero.all():
                found.append(key)
    return found


@torch.no_grad()
def _small_state(optimizer, p):
    """{key: (value, largest value)} of its state that is next to nothing where the parameter is largest."""
    found = {}
    state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
    at = int(p.abs().argmax()) if p.layout is torch.strided and not p.is_complex() else None
    for key, value in state.items() if isinstance(state, dict) and at is not None else ():
        if is_a(value, torch.Tensor) and value.layout is torch.strided and value.shape == p.shape:
            there, largest = float(value.reshape(-1)[at].abs()), float(value.abs().max())
            if 0 < there <= SMALL * largest < math.inf:
                found[key] = there, largest
    return found


DIVIDES = {"div": 0, "div_": 0, "true_divide": 0, "true_divide_": 0, "addcdiv": 1, "addcdiv_": 1}
INVERTS = ("reciprocal", "reciprocal_", "rsqrt", "rsqrt_")


def _division(optimizer, keys, ran):
    """((file, line) of where the class divides, which of these keys of its state it divides by there). None, and no
    key, where the class is a library's, or divides in several places by something else. ran: places that the trace
    saw. The place is None where another branch may have run instead."""
    found = []
    for cls in type(optimizer).__mro__:
        step = inspect.unwrap(cls.__dict__["step"]) if callable(cls.__dict__.get("step")) else None
        code = getattr(step, "__code__", None)
        if code is None:
            continue
        if is_library(code.co_filename):
            break
        try:
            tree = ast.parse("".join(sources.lines(code.co_filename)))
        except (SyntaxError, ValueError):
            break
        # Helpers of the same class as well.
        owner = next(
            (
                n
                for n in ast.walk(tree)
                if isinstance(n, ast.ClassDef) and n.lineno <= code.co_firstlineno <= n.end_lineno
            ),
            tree,
        )
        branches = Branches(owner)
        for function in [n for n in ast.walk(owner) if isinstance(n, ast.FunctionDef)]:
            aliases = _aliases(function)
            for node in ast.walk(function):
                if (by := _denominator(node)) is not None:
                    place = code.co_filename, node.lineno  # type: ignore[attr-defined]  # an expression
                    is_sure = place in ran or branches.always_runs(node)
                    found.append((sorted(_keys(by, aliases) & set(keys)), place, is_sure))
        break
    by_key = [f for f in found if f[0]]
    if not by_key and len(found) != 1:
        return None, ()
    candidates = by_key or found
    of, place, is_sure = next((f for f in candidates if f[1] in ran), None) or next(
        (f for f in candidates if f[2]), candidates[0]
    )
    return (place if is_sure else None), of


def _denominator(node):
    """What it divides by, where that is no number."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
        by = node.right if isinstance(node, ast.BinOp) else node.value
        return None if isinstance(by, ast.Constant) else by
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name, value = node.func.attr, node.func.value
    of_torch = isinstance(value, ast.Name) and value.id == "torch"
    if name in INVERTS:
        return node.args[0] if of_torch and node.args else None if of_torch else value
    place = DIVIDES.get(name)
    if place is None or len(node.args) <= place + of_torch:
        return None
    return node.args[place + of_torch]


def _aliases(function):
    """{name: keys of the state that its value is made of}, of plain assignments."""
    found = {}
    for _ in range(3):  # an alias of an alias
        for node in ast.walk(function):
            if not isinstance(node, ast.Assign):
                continue
            also = set().union(*(_keys(t, {}) for t in node.targets if isinstance(t, ast.Subscript)))
            for target in node.targets:
                if isinstance(target, ast.Name):  # h = state["h"] = ...
                    found.setdefault(target.id, set()).update(also)
                pairs = [(target, node.value)]
                if (
                    isinstance(target, ast.Tuple)
                    and isinstance(node.value, ast.Tuple)
                    and len(target.elts) == len(node.value.elts)
                ):
                    pairs = list(zip(target.elts, node.value.elts))
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, set()).update(_keys(value, found))
    return found


def _keys(node, aliases):
    keys = set()
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Subscript)
            and isinstance(inner.slice, ast.Constant)
            and isinstance(inner.slice.value, str)
        ):
            keys.add(inner.slice.value)
        elif (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr in ("get", "setdefault")
            and inner.args
            and isinstance(inner.args[0], ast.Constant)
            and isinstance(inner.args[0].value, str)
        ):
            keys.add(inner.args[0].value)
        elif isinstance(inner, ast.Name):
            keys |= aliases.get(inner.id, set())
    return keys
