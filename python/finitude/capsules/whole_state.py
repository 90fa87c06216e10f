"""The parameters, buffers and optimizer state with which a bad step began, put together from the capsules of its ranks:
of a DTensor each capsule holds the part of its rank and the place of that."""

from __future__ import annotations

import json

import torch

from .. import _native
from . import start_check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..base.types import Tensor


class Incomplete(Exception):
    """What of the state the capsules do not hold, in words."""


class Damaged(Exception):
    """A capsule that cannot be read."""


class _Capsule:
    def __init__(self, rank: int, folder: str):
        why, text, self.data, _ = _native.capsule_read(folder)
        if why:
            raise Damaged(f"{folder} {why}")
        about = json.loads(text)
        if not isinstance(about, dict) or not start_check.is_sound(about.get("start")):
            raise Incomplete(f"the capsule of rank {rank} does not hold what the program had as the step began")
        self.rank, self.start = rank, about["start"]
        self.optimizer = next(o for o in self.start["optimizers"] if o["failed"])

    def local(self, key: str) -> tuple[Tensor, dict[str, Any]]:
        """The part of this rank, and its record."""
        record = self.start["tensors"].get(key)
        if record is None or key not in self.data:
            raise Incomplete(f"the capsule of rank {self.rank} does not hold {key}")
        shape, data = record.get("part", record)["shape"], self.data[key]
        dtype = getattr(torch, record["dtype"])
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        try:
            return flat.reshape(shape), record
        except RuntimeError:
            raise Damaged(f"the capsule of rank {self.rank} has another {key} than it says") from None


def _same(a, b):
    """Also of values that are not finite: as bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _together(name, parts, missing):
    """parts: (rank, part, record) of each rank that holds one. missing: ranks without a capsule."""
    rank, first, record = parts[0]
    if any(other["shape"] != record["shape"] or other["dtype"] != record["dtype"] for _, _, other in parts):
        raise Incomplete(f"{name} has another shape on rank {rank} than on another rank")
    if any(("part" in other) != ("part" in record) for _, _, other in parts):
        raise Incomplete(f"{name} is a DTensor on some of the ranks only")
    if "part" not in record:
        if (other := next((r for r, part, _ in parts if not _same(part, first)), None)) is not None:
            raise Incomplete(
                f"{name} has other bits on rank {other} than on rank {rank}: "
                "which part of it a rank holds is known of DTensors only"
            )
        return first
    whole, seen = torch.zeros(record["shape"], dtype=first.dtype), torch.zeros(record["shape"], dtype=torch.bool)
    for number, part, other in parts:
        place = other["part"]
        if place["is_partial"]:
            raise Incomplete(f"{name} is a sum over ranks")
        if part.numel() == 0:
            continue
        if place["begins"] is None:
            raise Incomplete(f"torch does not say which part of {name} rank {number} holds")
        at = tuple(slice(b, b + n) for b, n in zip(place["begins"], part.shape))
        whole[at], seen[at] = part, True
    if not bool(seen.all()):
        others = f": rank {', '.join(map(str, missing[:8]))} left no capsule" if missing else ""
        raise Incomplete(f"a part of {name} is in no capsule{others}")
    return whole


def read(folders: Mapping[int, str], world_size: int) -> tuple[dict[str, Any], list[str]]:
    """(state, notes). folders: of the capsules, by rank. The state is in the layout of
    torch.distributed.checkpoint.state_dict.get_state_dict: `model` (name -> tensor), `optimizer` (`state`: name -> key
    -> tensor or number, `param_groups` without the names of their parameters). Raises Incomplete, Damaged."""
    held = [_Capsule(rank, folders[rank]) for rank in sorted(folders)]
    missing = [rank for rank in range(world_size) if rank not in folders]
    if lacks := next(
        (f"of rank {c.rank}: {c.optimizer['not_kept'][0]}" for c in held if c.optimizer.get("not_kept")), ""
    ):
        raise Incomplete(f"not all of the optimizer's state is kept, {lacks}")
    model, state, notes = {}, {}, []
    for name, parts in _by_name(held, "parameters").items():
        model[name] = _together(name, parts, missing)
    for name, parts in _by_name(held, "buffers").items():
        if "part" not in parts[0][2] and not all(_same(part, parts[0][1]) for _, part, _ in parts):
            notes.append(f"{name} differs between ranks, as a buffer may: that of rank {parts[0][0]} is taken")
            parts = parts[:1]
        model[name] = _together(name, parts, missing)
    for name in _by_name(held, "parameters"):
        own = [{"state": c.optimizer["state"].get(name, {}), **_of(c)} for c in held]
        state[name] = {key: _together(f"{name}.{key}", parts, missing) for key, parts in _parts(own, "state").items()}
        for capsule in held:
            state[name].update(capsule.optimizer["scalars"].get(name, {}))
    groups = [{k: v for k, v in group.items() if v is not None} for group in held[0].optimizer["groups"]]
    return {"model": model, "optimizer": {"state": state, "param_groups": groups}}, notes


def _of(capsule):
    return {"capsule": capsule}


def _by_name(held, kind):
    return _parts([{kind: c.optimizer[kind], **_of(c)} for c in held], kind)


def _parts(own, kind):
    """name -> [(rank, part, record)]."""
    found: dict[str, list[Any]] = {}
    for one in own:
        for name, key in one[kind].items():
            if key is None:
                raise Incomplete(f"the capsule of rank {one['capsule'].rank} does not hold {name}")
            found.setdefault(name, []).append((one["capsule"].rank, *one["capsule"].local(key)))
    return found
