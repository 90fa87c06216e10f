"""In the process that runs the user's script: what is seen of its first steps. Plain data comes out; nothing is
changed.

Every observer is guarded: an internal failure is noted and the script continues undisturbed. hooks.py puts the
observers where torch calls; measure.py and operations.py read off tensors and operations."""

from __future__ import annotations

import os
import threading
import time

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from ..base.plain_json import safe
from ..errors import Reached
from ..program import optimizer_members, torch_flags
from ..program.sharding import is_plain, is_sharded, local_part
from . import batches, loss_operands, measure, operations, random_calls, wiring
from .measure import place, rms, statistics, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..base.types import Module, Optimizer, Tensor

MAX_EVENTS, MAX_LAYERS, MAX_PARAMETERS, MAX_TENSORS = 20_000, 2_000, 5_000, 200
MAX_OPERATIONS = 20_000


class Look(TorchDispatchMode):
    """Looks on until `steps` steps of one optimizer are over. compared: with another run, operation by operation.
    draws: and keeps who draws random numbers."""

    def __init__(self, steps: int, write: Callable[[Any], Any], compared: bool = False, draws: bool = False):
        super().__init__()
        self.wanted, self.write, self.compared = steps, write, compared
        self.pid, self.begin = os.getpid(), time.monotonic()
        self.busy = False
        self.depth = {}  # thread -> modules on its stack
        self.autocast_on = {}  # thread -> autocast regions open
        self.names = {}  # id(module or parameter) -> name
        self.repeated = set()  # id(module) of blocks that a model has many of
        self.counts, self.ordinals, self.before = {}, {}, {}
        self.scales = {}  # id(scaler) -> its scale since its last update
        self.seen_layers, self.unnamed = set(), []
        self.backward_depth = self.scaler_depth = 0
        self.facts: dict[str, Any] = {
            "ended": "",
            "error": "",
            "torch": torch.__version__,
            "events": [],
            "autocast": [],
            "inputs": [],
            "layers": [],
            "blocks": [],
            "losses": [],
            "attention": [],
            "steps": [],
            "trouble": [],
            "products": {},
            "operations": [],
            "suspect": None,
            "steps_wanted": steps,
        }
        self.wiring = wiring.Wiring(self.facts)
        self.batches = batches.Batches(self.facts, self.wiring)
        self.random = random_calls.RandomCalls(self.facts, lambda: self.wiring.steps) if draws else None
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.busy = True

    def is_elsewhere(self) -> bool:
        """Is this an observer's own code, or another process?"""
        return self.busy or os.getpid() != self.pid

    # -- helpers -------------------------------------------------------------------------------

    def looking(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls one of our observers: not re-entered, and never a failure of the script's."""
        if self.busy:
            return
        self.busy = True
        try:
            with torch.no_grad():
                function(*args)
        except Reached:
            raise
        except Exception as e:
            if len(self.facts["trouble"]) < 20:
                self.facts["trouble"].append(f"{function.__name__}: {type(e).__name__}: {e}"[:300])
        finally:
            if os.getpid() == self.pid:
                self.busy = False

    def event(self, what: str, **more: Any) -> None:
        if len(self.facts["events"]) < MAX_EVENTS:
            file, line = place()
            self.facts["events"].append({"what": what, "file": file, "line": line, **more})

    def over(self, how: str, error: str = "") -> None:
        """Writes what was seen."""
        self.facts.update(ended=how, error=error[:2000], seconds=round(time.monotonic() - self.begin, 3))
        for end in (
            self._environment,
            *([self.random.over] if self.random else ()),
        ):  # also called by an observer: not through looking()
            try:
                end()
            except Exception as e:
                self.facts["trouble"].append(f"{end.__name__}: {type(e).__name__}: {e}"[:300])
        self.write(safe(self.facts))

    def _environment(self):
        f = self.facts
        f["flags"] = torch_flags.flags()
        try:
            f["matmul_precision"] = torch.get_float32_matmul_precision()
            f["tf32"] = {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32}
        except RuntimeError as e:  # torch raises where old and new settings are mixed
            f["precision_error"] = str(e)[:500]
        f["deterministic"] = torch.are_deterministic_algorithms_enabled()
        f["fill_uninitialized"] = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        f["cublas_workspace"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        f["cuda"] = torch.cuda.is_available() and torch.cuda.is_initialized()
        f["capability"] = list(torch.cuda.get_device_capability()) if f["cuda"] else None
        f["device_name"] = torch.cuda.get_device_name() if f["cuda"] else "CPU"
        f["seeded"] = torch.initial_seed() != 67280421310721  # what a generator starts with that nobody seeded

    # -- modules and their inputs --------------------------------------------------------------

    def call_module(
        self, original: Callable[..., Any], module: Module, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        thread = threading.get_ident()
        depth = self.depth.get(thread, 0)
        if not torch.is_grad_enabled() or self.is_elsewhere():
            return original(module, *args, **kwargs)
        if depth == 0:
            self.looking(self._root_called, module, args, kwargs, thread)
        self.depth[thread] = depth + 1
        try:
            out = original(module, *args, **kwargs)
        finally:
            self.depth[thread] = depth
        if not module._modules or module._parameters:
            self.looking(self._layer_done, module, out, "layers")
        elif id(module) in self.repeated:
            self.looking(self._layer_done, module, out[0] if isinstance(out, tuple) and out else out, "blocks")
        return out

    def _root_called(self, module, args, kwargs, thread):
        if id(module) not in self.names:
            for name, inner in module.named_modules():
                self.names.setdefault(id(inner), name)
                self._enter_repeated(inner)
            for name, p in module.named_parameters():
                self.names.setdefault(id(p), name)
        has_parameters = next(module.parameters(), None) is not None
        open_elsewhere = [t for t, n in self.autocast_on.items() if n and t != thread]
        if has_parameters and open_elsewhere and not self.autocast_on.get(thread):
            self.event("thread-without-autocast", module=type(module).__name__)
        for name, t in [*tensors_of(args, "input"), *tensors_of(kwargs)]:
            if not t.requires_grad and t.grad_fn is None:
                self.data(f"{name} of {type(module).__name__}", t)

    def _enter_repeated(self, module):
        kinds = {}
        for child in module._modules.values():
            if child is not None and child._modules:
                kinds.setdefault(type(child), []).append(id(child))
        self.repeated.update(i for same in kinds.values() if len(same) > 1 for i in same)

    def data(self, name: str, t: Tensor, indices: Sequence[Any] = ()) -> None:
        """A tensor of a batch: of a loader, which knows the samples, or given to a model."""
        if len(self.facts["inputs"]) < MAX_TENSORS and (one := measure.batch(name, t, indices)):
            self.facts["inputs"].append(one)

    def batch(self, batch: Any, indices: Sequence[Any]) -> None:
        for name, t in tensors_of(batch, "batch"):
            self.data(name, t, indices)

    def _layer_done(self, module, out, kind):
        if not isinstance(out, torch.Tensor) or not out.is_floating_point() or len(self.facts[kind]) >= MAX_LAYERS:
            return
        if not (s := statistics(out)):
            return
        if s["finite"] != s["numel"] and self.facts["suspect"] is None:
            self.facts["suspect"] = {
                "name": self.names.get(id(module), "") or type(module).__name__,
                "at": place(),
                "steps_before": len(self.facts["steps"]),
                "nan": s["nan"],
                "inf": s["inf"],
            }
        if id(module) in self.seen_layers:
            return
        self.seen_layers.add(id(module))
        weights = [w for p in module._parameters.values() if p is not None and p.dim() >= 2 and (w := statistics(p))]
        if not self.names.get(id(module)):
            self.unnamed.append((len(self.facts[kind]), kind, id(module)))
        self.facts[kind].append(
            {
                "name": self.names.get(id(module), ""),
                "class": type(module).__name__,
                "dtype": measure.dtype(out),
                "device": out.device.type,
                "rms": rms(s),
                "absmax": s["absmax"],
                "nan": s["nan"],
                "inf": s["inf"],
                "zero": s["zero"],
                "numel": s["numel"],
                "at": place(),
                "weights": bool(weights),
                "weight_rms": rms(weights[0]) if weights else None,
                "bits": measure.fingerprint(out),
            }
        )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name if hasattr(func, "_schema") else ""
        kwargs = kwargs or {}
        if self.is_elsewhere():
            return func(*args, **kwargs)
        # To ask a DTensor for its values would be a collective operation.
        in_parts = any(is_sharded(kind) for kind in types)
        watcher = None if in_parts else operations.WATCHED.get(name)
        if watcher is not None and self.backward_depth == 0 and torch.is_grad_enabled():
            self.looking(watcher, self.facts, name, args, kwargs)
        compared = self.compared and len(self.facts["operations"]) < MAX_OPERATIONS
        given = []
        if compared:
            self.looking(lambda: given.extend(operations.bits((args, kwargs))))
        out = func(*args, **kwargs)
        if compared:
            self.looking(operations.compared, self.facts, func, (args, kwargs), given, out, self.backward_depth > 0)
        if self.random is not None:
            self.looking(self.random.of_operation, func, args, kwargs, out, self.backward_depth > 0)
        if self.backward_depth == 0 and not self.before:  # and not inside a step
            if not in_parts:
                self.looking(loss_operands.look, self.facts, self.wiring.flow, name, args)
            self.looking(self.wiring.operation, name, args, kwargs, out, torch.is_grad_enabled())
        return out

    # -- backward, clipping, scaler, optimizer --------------------------------------------------

    def backward(self, original: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        outermost = self.backward_depth == 0 and kwargs.get("accumulate_grad", True)
        if outermost:  # torch.autograd.grad is no training step
            self.looking(self._backward_begins, args)
        self.backward_depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.backward_depth -= 1
            if outermost:
                self.looking(self.wiring.backward_ends)

    def _backward_begins(self, args):
        roots = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        self.wiring.backward_begins([r for r in roots if isinstance(r, torch.Tensor)])
        values = [float(r) for r in roots if is_plain(r) and r.numel() == 1]
        device = roots[0].device.type if roots and isinstance(roots[0], torch.Tensor) else "cpu"
        # The state that every node of this backward sees, however it was set.
        inside = any(
            torch.is_autocast_enabled(kind) for kind in {device, "cpu"} if torch.amp.is_autocast_available(kind)
        )
        self.event(
            "backward",
            loss=values[0] if values else None,
            autocast=inside,
            dtype=measure.dtype(roots[0]) if roots else "",
            device=device,
        )

    def autocast(self, region: Any, entered: bool, has_gradients: bool) -> None:
        thread = threading.get_ident()
        if not getattr(region, "_enabled", True):
            return
        self.autocast_on[thread] = max(0, self.autocast_on.get(thread, 0) + (1 if entered else -1))
        if entered and len(self.facts["autocast"]) < MAX_TENSORS:
            self.facts["autocast"].append(
                {
                    "device": region.device,
                    "dtype": str(region.fast_dtype)[6:],
                    "at": place(),
                    "grad": has_gradients,
                    "deprecated": type(region).__module__.startswith(("torch.cuda.amp", "torch.cpu.amp")),
                }
            )

    def scaler_called(self, what: str, scaler: Any, optimizer: Optimizer | None) -> None:
        scale = float(scaler.get_scale())
        if what == "scale":
            self.scales[id(scaler)] = scale
        elif what == "update":
            self.scales.pop(id(scaler), None)
        owned = [id(p) for p in optimizer_members.parameters(optimizer)[:64]] if optimizer is not None else []
        self.event(what, scaler=id(scaler), owned=owned, scale=scale, inside=self.scaler_depth > 0)

    def before_clip(self, parameters: Sequence[Tensor]) -> None:
        """What clipping is given: the norm in double precision, and who makes it."""
        stats = [(p, s) for p in parameters if p.grad is not None and (s := statistics(p.grad))]
        exact = sum(s["sum_sq"] for _, s in stats) ** 0.5
        top = sorted(stats, key=lambda one: -one[1]["sum_sq"])[:5]
        self.event(
            "before-clip",
            finite=all(s["finite"] == s["numel"] for _, s in stats),
            elements=len(stats),
            exact=exact,
            dtypes=sorted({measure.dtype(p.grad) for p, _ in stats}),  # type: ignore[arg-type]  # see above
            bad=[self.names.get(id(p), "") for p, s in stats if s["finite"] != s["numel"]][:20],
            top=[{"name": self.names.get(id(p), f"shape {list(p.shape)}"), "norm": s["sum_sq"] ** 0.5} for p, s in top],
        )

    def clipped(
        self, parameters: Sequence[Tensor], result: Any, max_norm: float, by: str, norm_type: float = 2.0
    ) -> None:
        with_grad = [p for p in parameters if p.grad is not None]
        # Of gradients in parts over ranks the norm is known to no single one.
        of_parts = any(is_sharded(type(t)) for t in (result, *with_grad))
        self.event(
            "clip",
            norm=float(result) if isinstance(result, torch.Tensor) and not of_parts else None,
            max_norm=float(max_norm),
            by="parts" if of_parts else by,
            norm_type=float(norm_type),
            parameters=len(parameters),
            gradients=len(with_grad),
            owned=[id(p) for p in with_grad[:64]],
        )

    def before_step(self, optimizer: Optimizer) -> None:
        if self.facts["ended"]:  # the script has swallowed our exception
            os._exit(0)
        if measure.is_inner_step(optimizer):
            return
        ordinal = self.ordinals.setdefault(id(optimizer), len(self.ordinals))
        step = self.counts[ordinal] = self.counts.get(ordinal, -1) + 1
        names, parameters = optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)
        for name, p in zip(names, parameters):
            self.names.setdefault(id(p), name)
        self._name_layers(optimizer)
        losses = [e["loss"] for e in self.facts["events"] if e["what"] == "backward" and e["loss"] is not None]
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        scale = max(self.scales.values(), default=1.0)
        found = {
            "optimizer": type(optimizer).__name__,
            "ordinal": ordinal,
            "step": step,
            "loss": losses[-1] if losses else None,
            "lr": float(group.get("lr", 0.0)),
            "parameters": [],
            "at": place(),
            "update": None,
            "scale": scale,
            "owned": [id(p) for p in parameters[:MAX_PARAMETERS]],
            "anomaly": torch.is_anomaly_enabled(),
            "anomaly_checks": torch.is_anomaly_check_nan_enabled(),
            "modes": self._modes(),
        }
        for name, p in list(zip(names, parameters))[:MAX_PARAMETERS]:
            found["parameters"].append(measure.parameter(name, p, scale))
        self.wiring.before_step(parameters, found)
        self.event("step", ordinal=ordinal, step=step, owned=found["owned"][:64])
        self.facts["steps"].append(found)
        self.before[ordinal] = [
            (local_part(p).clone(), p._version, self._had_gradient(p)) for p in parameters[:MAX_PARAMETERS]
        ]
        self.write(safe(self.facts))

    def _name_layers(self, optimizer):
        """Those that were called by themselves, by the model that they belong to."""
        waiting, self.unnamed = self.unnamed, []
        if waiting:
            names = {id(m): name for root in optimizer_members.roots(optimizer) for name, m in root.named_modules()}
            for i, kind, module in waiting:
                self.facts[kind][i]["name"] = names.get(module, "")

    def _modes(self):
        """Dispatch and function modes other than those of Finitude and those that torch has for its own use."""
        stack = [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]
        return [type(m).__name__ for m in stack if m is not self and type(m).__module__ != "torch.utils._device"]

    @staticmethod
    def _had_gradient(p):
        """Of half-precision weights, which elements have one: an update may be too small for them."""
        if p.dtype not in (torch.float16, torch.bfloat16) or p.grad is None or p.grad.layout != torch.strided:
            return None
        return local_part(p.grad) != 0

    def after_step(self, optimizer: Optimizer) -> None:
        ordinal = self.ordinals.get(id(optimizer))
        if measure.is_inner_step(optimizer):
            return
        if ordinal is None or (before := self.before.pop(ordinal, None)) is None:
            return
        parameters = optimizer_members.parameters(optimizer)
        moved = size = 0.0
        changed, bad, kept, had, still, written = [], [], [], 0, 0, 0
        mine = [s for s in self.facts["steps"] if s["ordinal"] == ordinal][-1]
        for one, p, (was, version, gradient) in zip(mine["parameters"], parameters, before):
            now = local_part(p)
            moved += float((now.double() - was.double()).square().sum())
            size += float(was.double().square().sum())
            written += p._version != version
            if bool(((now != was) & ~(now.isnan() & was.isnan())).any()):
                changed.append(one["name"])
            elif one["grad"] and one["grad"]["zero"] < one["grad"]["numel"]:
                kept.append(one["name"])
            if not one["bad"] and (s := statistics(p)) and s["finite"] != s["numel"]:
                bad.append(one["name"])
            if gradient is not None:
                n, stayed = int(gradient.sum()), int((gradient & (now == was)).sum())
                had, still = had + n, still + stayed
        given = [
            p.grad
            for one, p in zip(mine["parameters"], parameters)
            if one["grad"] and one["grad"]["nan"] + one["grad"]["inf"]
        ]
        still_bad = sum(g is not None and bool((s := statistics(g)) and s["finite"] != s["numel"]) for g in given)
        mine["update"] = {
            "moved": moved**0.5,
            "size": size**0.5,
            "changed": len(changed),
            "written": written,
            "bad": bad[:20],
            "kept": kept[:MAX_TENSORS],
            "gradients_bad": still_bad,
            "half_elements": had,
            "half_unmoved": still,
        }
        self.facts["events"].append(
            {"what": "stepped", "file": "", "line": 0, "ordinal": ordinal, "step": mine["step"]}
        )
        self.wiring.after_step(ordinal, parameters)
        if self.counts[ordinal] + 1 >= self.wanted:
            self.over("steps")
            raise Reached  # and not os._exit: what the script cleans up on its way out is cleaned up
