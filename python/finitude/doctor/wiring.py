"""How the training of the first steps is connected: which parameters a loss reaches, which an optimizer owns, whether
gradients are cleared, in which mode modules ran. Plain data for the checks; look.py calls each observer guarded."""

from __future__ import annotations

import threading
import weakref

import torch

from ..program.sharding import local_part
from . import flow as flows, measure, ties
from .measure import place, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Module, Optimizer, Tensor

MAX_FACTS, MAX_LOSSES, WATCHED_GRADIENTS = 200, 500, 8
# Layers that compute something else in evaluation mode.
MODAL = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm)


def _not_zero(gradient):
    """Of a DTensor what this rank holds: an observer makes no collective operation."""
    return gradient is not None and (gradient.layout != torch.strided or bool(local_part(gradient).any()))


# Values at which their derivative is zero.
SATURATES: dict[str, tuple[int, ...]] = {"aten::relu": (0,), "aten::relu_": (0,), "aten::clamp_min": (0,)}
SATURATES |= {"aten::sigmoid": (0, 1), "aten::tanh": (-1, 1)}


class Leaf:
    """A leaf that some backward reached. value: its fingerprint where it was first reached."""

    __slots__ = ("weak", "value", "first", "flat", "arrived", "stepped", "carried", "cleared", "reached")

    def __init__(self, tensor: Tensor, first: int):
        self.weak, self.value, self.first = weakref.ref(tensor), measure.fingerprint(tensor), first
        self.flat = True  # behind an operation with derivative zero in each backward
        self.reached = self.arrived = self.stepped = self.carried = self.cleared = False


class Wiring:
    def __init__(self, facts: dict[str, Any]):
        self.facts: dict[str, Any] = {"made": [], "modes": [], "unowned": [], "eval_random": []}
        facts["wiring"] = self.facts
        self.flow, self.ties = flows.Flow(), ties.Ties(self.facts)
        self.leaves: dict[int, Leaf] = {}
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.losses: list[tuple[int, list[flows.Origin], frozenset[int]]] = []  # (steps before, origins, ids reached)
        self.steps = 0  # of all optimizers
        self.since: dict[int, int] = {}  # optimizer -> steps when its last one was over
        self.names: dict[int, str] = {}
        self.models: weakref.WeakSet[Module] = weakref.WeakSet()  # modules called by the script
        self.roots: dict[int, int] = {}  # id(module called by the script) -> number
        self.home: dict[int, int] = {}  # id(parameter) -> number of the root that ran it
        self.ran: set[int] = set()  # id(parameter) of modules that ran with gradients
        self.called: set[int] = set()
        self.modal: dict[int, list[str]] = {}  # number of a root -> its MODAL layers in evaluation mode
        self.reached_now: list[Leaf] = []
        self.dead: dict[tuple[str, int], str] = {}  # place -> operation that is saturated in each call, or ""
        self.thread = threading.local()

    # -- modules -------------------------------------------------------------------------------

    def stack(self) -> list[Module]:
        """Modules around, in this thread."""
        try:
            return self.thread.stack
        except AttributeError:
            self.thread.stack = []
            return self.thread.stack

    def note_call(self, module: Module) -> None:
        """A module is about to run with gradients, inside the last of the stack."""
        stack = self.stack()
        root = stack[0] if stack else module
        number = self.roots.setdefault(id(root), len(self.roots))
        if id(module) not in self.called:
            self.called.add(id(module))
            if not stack:
                self.models.add(module)
                for name, p in module.named_parameters():
                    self.names.setdefault(id(p), name)
                    self.home.setdefault(id(p), number)
            for name, own in module._parameters.items():
                if own is not None:
                    self.ran.add(id(own))
                    self.home.setdefault(id(own), number)
                    self.names.setdefault(id(own), f"{type(module).__name__}.{name} (not registered in a module)")
        if not module.training and isinstance(module, MODAL) and getattr(module, "p", 1) > 0:
            layers = self.modal.setdefault(number, [])
            if type(module).__name__ not in layers:
                layers.append(type(module).__name__)

    def root_done(self, module: Module, out: Any) -> None:
        tag = ("mode", self.roots.get(id(module), -1), bool(module.training), type(module).__name__)
        for _, tensor in tensors_of(out):
            self.flow.tag(tensor, tag)

    def operation(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any, has_gradients: bool) -> None:
        """An operation outside backward and steps, after it."""
        self.flow.operation(name, (args, kwargs), out)
        if name in SATURATES and args[0].requires_grad:
            self._saturates(name, out)
        stack = self.stack()
        if (
            name in ("aten::bernoulli_", "aten::native_dropout")
            and stack
            and not has_gradients
            and not any(m.training for m in stack)
            and len(self.facts["eval_random"]) < MAX_FACTS
        ):
            self.facts["eval_random"].append({"module": type(stack[-1]).__name__, "at": place()})

    def _saturates(self, name, out):
        """Notes a call whose derivative is zero for all of its elements, and one where it is not, by place."""
        at = place()
        ends = (out == 0) if SATURATES[name] == (0,) else sum((out == end) for end in SATURATES[name]) > 0
        is_dead = out.numel() > 0 and bool(ends.all())
        if at in self.dead or len(self.dead) < MAX_FACTS:
            self.dead[at] = self.dead.get(at, name) if is_dead else ""

    # -- backward ------------------------------------------------------------------------------

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        reached = flows.leaves(roots)
        steep = {id(t) for t in flows.leaves(roots, through_flat=False)}
        origins = [one for r in roots if (one := self.flow.of(r))]
        if len(self.losses) < MAX_LOSSES:
            self.losses.append((self.steps, origins, frozenset(map(id, reached))))
        self.reached_now = []
        for tensor in reached:
            leaf = self.leaves.get(id(tensor))
            if leaf is None or leaf.weak() is not tensor:
                leaf = self.leaves[id(tensor)] = Leaf(tensor, self.steps)
            leaf.reached = True
            leaf.flat &= id(tensor) not in steep
            if leaf.stepped:  # one backward of the window that finds it cleared is enough: another may come before
                if _not_zero(tensor.grad):
                    leaf.carried = True
                else:
                    leaf.cleared = True
            self.reached_now.append(leaf)
        self._note_modes(origins, {id(t) for t in reached})

    def _note_modes(self, origins, reached):
        """In which mode the modules ran whose outputs the loss is made of."""
        tags = frozenset().union(*(one.tags for one in origins))
        for _, number, training, name in (t for t in tags if t[0] == "mode"):
            own = [p for p, root in self.home.items() if root == number and p in reached]
            if len(self.facts["modes"]) < MAX_FACTS and own:
                both = ("mode", number, not training, name) in tags
                layers = self.modal.get(number, [])
                self.facts["modes"].append(
                    {"root": number, "module": name, "training": training, "both": both, "layers": layers}
                    | {"step": self.steps, "at": place(), "parameters": own[:64]}
                )

    def backward_ends(self) -> None:
        for leaf in self.reached_now:
            tensor = leaf.weak()
            leaf.arrived = leaf.arrived or tensor is not None and _not_zero(tensor.grad)
        self.reached_now = []

    # -- optimizers ----------------------------------------------------------------------------

    def made(self, optimizer: Optimizer) -> None:
        self.optimizers.add(optimizer)
        d = optimizer.defaults
        first = [id(p) for g in optimizer.param_groups for p in g["params"]][:64]
        if len(self.facts["made"]) < MAX_FACTS:
            self.facts["made"].append(
                {"optimizer": type(optimizer).__name__, "owned": first, "steps": self.steps, "at": place()}
                | {"keeps": bool(d.get("momentum") or "betas" in d)}
            )

    def before_step(self, parameters: Sequence[Tensor], found: dict[str, Any]) -> None:
        """Adds to each parameter of the step what is known of its gradient."""
        since = self.since.get(found["ordinal"], 0)
        losses = [one for one in self.losses if one[0] >= since]
        found["backwards"] = len(losses)
        for fact, p in zip(found["parameters"], parameters):
            leaf = self.leaves.get(id(p))
            leaf = leaf if leaf is not None and leaf.weak() is p else None
            fact.update(
                trains=p.requires_grad,
                reached=any(id(p) in ids for _, _, ids in losses),
                arrived=bool(leaf and leaf.arrived),
                carried=bool(leaf and leaf.carried and not leaf.cleared),
                flat=bool(leaf and leaf.reached and leaf.flat),
                ran=id(p) in self.ran,
                key=id(p),
                given=_not_zero(p.grad),  # also a sparse one, which measure.py does not read
                none=p.grad is None,
                cut=None,
            )
            if p.requires_grad and p.grad is None and not fact["reached"]:
                fact["cut"] = self._cut(p, losses)
        if found["step"] == 0:
            self.ties.before(found["parameters"], parameters, self.models)
        found["flat"] = dict(self.flow.flat)

    def _cut(self, p, losses):
        bit = self.flow.bit_of(p)
        for _, origins, _ in losses:
            for one in origins:
                if not bit or not one.parameters & bit:
                    continue
                for bits, operation, at in one.cuts:
                    if bits & bit and at[0]:
                        return [operation, *at]
                return [one.operation, *one.at]
        return None

    def after_step(self, ordinal: int, parameters: Sequence[Tensor]) -> None:
        self.steps += 1
        self.since[ordinal] = self.steps
        for p in parameters:
            if (leaf := self.leaves.get(id(p))) is not None:
                leaf.stepped, leaf.carried, leaf.cleared, leaf.arrived = True, False, False, False
        self.flow.forget()
        self._note_state()

    def _note_state(self):
        """After each step: at the end of a script what it made is gone."""
        self.ties.over()
        self._note_unowned()
        self.facts["dead"] = [{"op": name, "at": at} for at, name in self.dead.items() if name]

    def _note_unowned(self):
        """Parameters that get gradients and belong to nothing that changes them."""
        self.facts["unowned"] = []
        owned = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        registered = {id(p) for m in self.models for p in m.parameters()}
        trained = {self.home[i] for i in owned if i in self.home}
        for key, leaf in self.leaves.items():
            p = leaf.weak()
            if p is None or key in owned or not isinstance(p, torch.nn.Parameter) or self.steps - leaf.first < 2:
                continue
            if leaf.value and measure.fingerprint(p) == leaf.value and len(self.facts["unowned"]) < MAX_FACTS:
                home = self.home.get(key)
                self.facts["unowned"].append(
                    {"name": self.names.get(key, ""), "shape": list(p.shape), "registered": key in registered}
                    | {"beside_owned": home in trained, "arrived": leaf.arrived}
                )


def around(look: Any) -> Callable[..., Any]:
    """What Module.__call__ is replaced by: keeps the stack of modules, in training and in evaluation."""
    wiring = look.wiring

    def call(original, module, args, kwargs):
        if look.is_elsewhere():
            return original(module, *args, **kwargs)
        stack = wiring.stack()
        if torch.is_grad_enabled():  # an observer runs without
            look.looking(wiring.note_call, module)
        stack.append(module)
        try:
            out = look.call_module(original, module, args, kwargs)
        finally:
            stack.pop()
        if not stack and torch.is_grad_enabled():
            look.looking(wiring.root_done, module, out)
        return out

    return call
