"""Which ranks step an optimizer together, by how its parameters are distributed.

It is known of DTensors (FSDP2, HSDP, tensor, sequence and expert parallel), FSDP1, pipeline stages, and of
DistributedDataParallel: there where the last backward exchanged no gradients (no_sync), and in each step where the
optimizer also holds parameters that the model does not exchange, such as the experts of this rank, that a GradScaler
steps, or that steps under Join."""

from __future__ import annotations

import sys
import weakref

from .. import _native
from . import optimizer_members, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..base.types import Optimizer

FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"
STAGE = "torch.distributed.pipelining.stage", "_PipelineStageBase"


def _kind(place: tuple[str, str]) -> Any:
    """A class of a module that the program has imported, or None."""
    return getattr(sys.modules.get(place[0]), place[1], None)


def _of_group(group: Any) -> tuple[int, ...]:
    import torch.distributed as distributed

    return tuple(sorted(distributed.get_process_group_ranks(group)))


def _holds(module: Any, wanted: set[int]) -> bool:
    return any(id(p) in wanted for p in module.parameters())


def _fsdp1_models() -> list[Any]:
    kind = _kind(FSDP1)
    return optimizer_members.instances(kind) if kind is not None else []


def _stages() -> list[Any]:
    kind = _kind(STAGE)
    return [s for s in _native.instances((kind,))] if kind is not None else []


def may_step_together(optimizer: Optimizer) -> bool:
    """Is there anything in this process of which together() may find that ranks step together?"""
    return bool(_of_meshes(optimizer) or ranks.parallel_models() or _fsdp1_models() or _stages())


def _of_meshes(optimizer: Optimizer) -> list[tuple[int, ...]]:
    """The ranks of each mesh that DTensors among the parameters lie on."""
    found: set[tuple[int, ...]] = set()
    for p in optimizer_members.parameters(optimizer):
        mesh: Any = getattr(p, "device_mesh", None)
        if mesh is not None and mesh.device_type == "cpu":
            found.add(tuple(sorted(mesh.mesh.flatten().tolist())))
    return list(found)


def _joined(sets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """All ranks that are in one step with this one. Of sets that only overlap (rows and columns of a mesh) each rank
    knows its own ones: then all ranks of the run are meant. Empty: it is not known that any are."""
    rank, size = ranks.world()
    sets = sorted({s for s in sets if len(s) > 1 and rank in s}, key=len)
    if not sets:
        return ()
    return sets[-1] if all(set(s) <= set(sets[-1]) for s in sets) else tuple(range(size))


class Stepping:
    """Made once for each optimizer, as it looks for all models of the process."""

    def __init__(self, optimizer: Optimizer):
        parameters = optimizer_members.parameters(optimizer)
        wanted = {id(p) for p in parameters}
        models = [m for m in ranks.parallel_models() if _holds(m.module, wanted)]
        self._models = [weakref.ref(model) for model in models]
        self._optimizer = weakref.ref(optimizer)
        self._always: tuple[int, ...] = ()
        if any(p.device.type != "cpu" for p in parameters):
            return
        found = _of_meshes(optimizer)
        for sharded in _fsdp1_models():
            if _holds(sharded, wanted):
                found.append(_of_group(sharded.process_group))
                between = getattr(sharded, "_inter_node_pg", None)  # of HYBRID_SHARD
                found += [_of_group(between)] if between is not None else []
        stages = [_of_group(stage.group) for stage in _stages() if _holds(stage.submod, wanted)]
        reduced = {id(p) for m in models for p in _reduced(m)}
        if found or stages or any(p.requires_grad and id(p) not in reduced for p in parameters):
            found += [_of_group(m.process_group) for m in models]
        self._always = _joined(found + stages)

    def together(self, is_scaled: bool) -> tuple[int, ...]:
        """The ranks of the step that comes. Empty: it is not known that there are any, or all have the same
        gradients and see the same in them.

        is_scaled: a GradScaler's. Where the unscaled loss of one rank is bad, the others take the averaged gradients
        for those of a scale that is too large."""
        if self._always:
            return self._always
        for model in (r() for r in self._models):
            if model is None or not model.training:
                continue
            if is_scaled or not ranks.was_reduced(model) or _is_shadowed(self._optimizer()):
                return _of_group(model.process_group)
        return ()


def _is_shadowed(optimizer):
    """Does it step under Join (ZeroRedundancyOptimizer)? A rank whose inputs have ended steps it with the others, and
    has no gradients to see anything in."""
    return getattr(getattr(optimizer, "_join_config", None), "enable", False)


def _reduced(model):
    """The parameters whose gradients this DistributedDataParallel averages."""
    ignored = getattr(model, "parameters_to_ignore", ())
    return [p for name, p in model.module.named_parameters() if name not in ignored]
