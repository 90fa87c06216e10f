"""A copy in host memory of what a training is at one moment: parameters and buffers of every module, optimizers,
schedulers, the GradScaler, generators. What it is put back into are the same tensors and objects, so names, hooks and
graphs of the program's keep what they refer to. The position of a loader is not part of it. Of a DTensor it is the
shard of this rank."""

from __future__ import annotations

import copy
import weakref
from typing import NamedTuple

import torch

from .. import _native
from ..base.kinds import is_a
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from torch.distributed.tensor import DeviceMesh, Placement

    from ..base.types import Optimizer, Tensor

RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # of a group; schedulers compute the next rate from them


class NotCopied(Exception):
    """Something is of a kind that has no plain copy; the text names it."""


class _Shard(NamedTuple):
    """The part of a DTensor of an optimizer's state that lies here, and what makes one of it."""

    host: Tensor
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    def made(self, like: Tensor | None) -> Tensor:
        from torch.distributed.tensor import DTensor

        local = _on_device_of(self.host, like)
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )


def _module_tensors(optimizers):
    """Each once, a parameter of an optimizer with True."""
    owned = {id(p): p for o in optimizers for p in optimizer_members.parameters(o)}
    held = {id(t): t for _, _, t in optimizer_members.held_by_modules()}
    # Where FSDP2 has gathered parameters, modules hold those in the place of the shards; later their memory is let go.
    return [(t, number in owned) for number, t in {**held, **owned}.items() if not _is_freed(t)]


def _is_freed(tensor):
    if not optimizer_members.has_memory(tensor):
        return False
    local = _native.local_of(tensor)
    return local.layout is torch.strided and local.numel() > 0 and local.untyped_storage().nbytes() == 0


def _state_tensors(optimizers):
    for o in optimizers:
        for state in list(o.state.values()):
            yield from (v for v in (state.values() if isinstance(state, dict) else ()) if is_a(v, torch.Tensor))


def size(optimizers: Sequence[Optimizer]) -> int:
    """Bytes that a copy takes now."""
    found = [t for t, _ in _module_tensors(optimizers)] + list(_state_tensors(optimizers))
    local = (_native.local_of(t) for t in found)
    return sum(t.numel() * t.element_size() for t in local if t.layout is torch.strided)


class StateCopy:
    """One copy. It keeps nothing of the program's alive: what is gone by then is not put back."""

    def __init__(self, room: StateCopy | None = None):
        """room: a copy that is needed no more, and whose memory this one takes over."""
        self._room = room._tensors if room is not None else []
        self._tensors: list[Tensor] = []
        self._modules: list[tuple[Any, Tensor, bool]] = []
        self._optimizers: list[tuple[Any, list[dict[str, Any]], list[tuple[Any, dict[Any, Any]]]]] = []
        self._schedulers: list[tuple[Any, dict[str, Any]]] = []
        self._scalers: list[tuple[Any, list[Any]]] = []
        self._largest: list[Tensor] = []  # of tensors on devices, read when the device has come to them
        self._generators: Any = None
        self.number = 0  # of the iteration after which it was taken; the same on all ranks
        self.is_tried = False  # enough steps have come after it to say whether it is good
        self.steps: dict[int, int] = {}  # by number of the optimizer: steps before it
        self.lowered: dict[int, float] = {}  # the same: by which factor the policy had lowered its learning rate

    @torch.no_grad()
    def take(self, optimizers: Sequence[Optimizer]) -> None:
        """Raises NotCopied. On a device the copy is queued behind what runs there; the host does not wait."""
        for tensor, is_owned in _module_tensors(optimizers):
            self._modules.append((weakref.ref(tensor), self._host(tensor), is_owned))
        on_device: dict[Any, list[Tensor]] = {}
        for tensor in (*(p for o in optimizers for p in optimizer_members.parameters(o)), *_state_tensors(optimizers)):
            if tensor.device.type != "cpu" and tensor.is_floating_point():
                on_device.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
        for found in on_device.values():
            self._largest.append(torch.stack(list(torch._foreach_norm(found, float("inf")))).float().sum())
        for o in optimizers:
            groups = [{k: self._value(v) for k, v in group.items() if k != "params"} for group in o.param_groups]
            states = [
                (weakref.ref(p), {k: self._value(v) for k, v in o.state[p].items()})
                for p in optimizer_members.parameters(o)
                if p in o.state
            ]
            self._optimizers.append((weakref.ref(o), groups, states))
            window = _native.window(o)
            self.steps[window["ordinal"]] = window["step"]
        for scheduler in optimizer_members.schedulers(optimizers):
            self._schedulers.append((weakref.ref(scheduler), copy.deepcopy(scheduler.state_dict())))
        for scaler in optimizer_members.instances(torch.amp.GradScaler):
            if scaler._enabled and scaler._scale is not None and scaler._growth_tracker is not None:
                self._scalers.append((weakref.ref(scaler), [scaler._scale.clone(), scaler._growth_tracker.clone()]))
        self._generators = _native.take_generators()
        self._room = []

    def _host(self, tensor):
        if not optimizer_members.has_memory(tensor):
            raise NotCopied(f"a {type(tensor).__name__} without memory of its own")
        source = _native.local_of(tensor).detach()
        if source.layout is not torch.strided:
            return source.to("cpu", copy=True)
        place = len(self._tensors)
        found = self._room[place] if place < len(self._room) else None
        if found is None or found.shape != source.shape or found.dtype != source.dtype:
            found = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.device.type == "cuda")
        found.copy_(source, non_blocking=True)
        self._tensors.append(found)
        return found

    def _value(self, value: Any) -> Any:
        if is_a(value, torch.Tensor):
            host = self._host(value)
            mesh: Any = getattr(value, "device_mesh", None)
            of: Any = value
            return host if mesh is None else _Shard(host, mesh, of.placements, of.shape, of.stride())
        try:
            return copy.deepcopy(value)
        except Exception as e:  # of the program's own class, perhaps
            raise NotCopied(f"a {type(value).__name__} in an optimizer: {e}") from None

    @torch.no_grad()
    def is_sound(self) -> bool:
        """Parameters and optimizer state are finite, and no buffer has a NaN (an Inf may be a mask)."""
        if not all(bool(torch.isfinite(largest)) for largest in self._largest):
            return False
        for of, host, is_owned in self._modules:
            if not host.is_floating_point():
                continue
            tensor = of()
            if is_owned and (tensor is None or tensor.device.type == "cpu") and not _native.is_finite(host):
                return False
            if not is_owned and not _native.is_finite(host) and bool(host.isnan().any()):
                return False
        for _, _, states in self._optimizers:
            for _, state in states:
                for value in (v.host if isinstance(v, _Shard) else v for v in state.values()):
                    is_float = is_a(value, torch.Tensor) and value.is_floating_point()
                    if is_float and not value.is_pinned() and not _native.is_finite(value):
                        return False
        return True

    @torch.no_grad()
    def put_back(self, factor: float) -> None:
        """Everything is as it was. factor: learning rates are that many times what they were."""
        for of, host, _ in self._modules:
            if (tensor := of()) is not None:
                _write(tensor, host)
        for of, groups, states in self._optimizers:
            if (optimizer := of()) is not None:
                _put_optimizer_back(optimizer, groups, states)
        for of, state in self._schedulers:
            if (scheduler := of()) is not None:
                scheduler.load_state_dict(copy.deepcopy(state))
        for of, tensors in self._scalers:
            if (scaler := of()) is not None:
                scaler._scale.copy_(tensors[0])
                scaler._growth_tracker.copy_(tensors[1])
        if factor != 1:
            scale_rates([o for of, _, _ in self._optimizers if (o := of()) is not None], factor)
        self._generators.restore()

    def optimizers(self) -> list[Optimizer]:
        return [o for of, _, _ in self._optimizers if (o := of()) is not None]


def _write(tensor, host):
    """Not seen by autograd: a graph that the program still holds is not refused for it."""
    if not _is_freed(tensor):
        _native.local_of(tensor).data.copy_(host)


def _put_optimizer_back(optimizer, groups, states):
    for group, before in zip(optimizer.param_groups, groups):
        for key in [k for k in group if k != "params" and k not in before]:
            del group[key]
        for key, value in before.items():
            group[key] = _as_before(group.get(key), value)
    known = {id(p): state for of, state in states if (p := of()) is not None}
    for p in optimizer_members.parameters(optimizer):
        before = known.get(id(p))
        if before is None:
            optimizer.state.pop(p, None)
            continue
        now = optimizer.state[p]
        for key in [k for k in now if k not in before]:
            del now[key]
        for key, value in before.items():
            now[key] = _as_before(now.get(key), value, p)


def _as_before(now, value, like=None):
    """like: a tensor on whose device one lies that is not there any more."""
    is_shard = isinstance(value, _Shard)
    host = value.host if is_shard else value
    if not is_a(host, torch.Tensor):
        return copy.deepcopy(value)
    if is_a(now, torch.Tensor) and hasattr(now, "device_mesh") == is_shard:
        local = _native.local_of(now)
        if (local.shape, local.dtype) == (host.shape, host.dtype):
            _write(now, host)
            return now
    return value.made(like) if is_shard else _on_device_of(host, like)


def _on_device_of(host, like):
    return host.to(like.device, copy=True) if like is not None and host.is_pinned() else host.clone()


def scale_rates(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Learning rates times that, and what schedulers compute later ones from."""
    optimizers = list(optimizers)

    def times(value):
        if is_a(value, torch.Tensor):
            value.mul_(factor)
            return value
        return value * factor

    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for key in RATES:
                if isinstance(group.get(key), (int, float, torch.Tensor)):
                    group[key] = times(group[key])
    for scheduler in optimizer_members.schedulers(optimizers):
        for name in ("base_lrs", "max_lrs"):
            if isinstance(rates := getattr(scheduler, name, None), list):
                setattr(scheduler, name, [times(rate) for rate in rates])


def after_update(scaler: Any) -> None:
    """What GradScaler.update does after a step that was taken. The one of the program, for a step that was not, is held
    back: it would ask for checks that nobody has made."""
    if scaler is not None and scaler._enabled and scaler._scale is not None:
        none = torch.zeros_like(scaler._scale)
        update: Callable[..., Any] = torch._amp_update_scale_
        update(
            scaler._scale,
            scaler._growth_tracker,
            none,
            scaler._growth_factor,
            scaler._backoff_factor,
            scaler._growth_interval,
        )
