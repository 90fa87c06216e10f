"""Which parameters should hold the same bits on several ranks: of DistributedDataParallel, and of DTensors that a
dimension of their mesh replicates."""

from __future__ import annotations

import sys

from . import optimizer_members, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Optimizer, Tensor


def of_optimizer(optimizer: Optimizer) -> dict[int, list[tuple[str, Tensor]]]:
    """{rank: names and tensors of this process that hold the bits of that rank's}. A rank leads where it is the first
    of its replicas, and is listed as its own."""
    found: dict[int, list[tuple[str, Tensor]]] = {}
    leaders = _leaders_of_parallel_models()
    for name, parameter in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
        mesh = getattr(parameter, "device_mesh", None)
        leader = leaders.get(id(parameter)) if mesh is None else _leader_in_mesh(parameter, mesh)
        if leader is not None:
            local: Any = parameter if mesh is None else parameter.to_local()  # type: ignore[attr-defined]
            found.setdefault(leader, []).append((name, local.detach()))
    return found


def _leaders_of_parallel_models():
    """{id of a parameter: the first rank of those that DistributedDataParallel keeps equal}"""
    distributed: Any = sys.modules.get("torch.distributed")
    leaders = {}
    for model in ranks.parallel_models():
        if model.process_group.size() < 2:
            continue
        leader = distributed.get_global_rank(model.process_group, 0)
        ignored = getattr(model, "parameters_to_ignore", ())
        leaders.update({id(p): leader for name, p in model.module.named_parameters() if name not in ignored})
    return leaders


def _leader_in_mesh(parameter, mesh):
    """None where no dimension of the mesh replicates it."""
    place = mesh.get_coordinate()
    replicated = [d for d, placement in enumerate(parameter.placements) if placement.is_replicate()]
    if place is None or all(mesh.size(d) < 2 for d in replicated):
        return None
    first = tuple(0 if d in replicated else at for d, at in enumerate(place))
    return int(mesh.mesh[first])
