"""Which rank of how many this process is, and what one rank may decide alone.

Under DistributedDataParallel ranks need not agree on a veto: every one is given the same gradients, so each sees the
same bad one and leaves the same step out. Where a rank could be the only one to see a value it must not act alone: they
ask one another first. A second run repeats collective operations, so all make it or none: see rank_vote.py."""

from __future__ import annotations

import os
import sys

from ..base import compat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..base.types import Alarm, Birth, Cause, Findings, Tensor

# Who numbers the processes it starts: torchrun and accelerate, Slurm, Open MPI, MPICH and its kin.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def _group():
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        return distributed if distributed.is_available() and distributed.is_initialized() else None
    except AttributeError:
        return None


def world() -> tuple[int, int]:
    """(rank, number of ranks): of the process group where there is one, else as the launcher numbered this process."""
    group = _group()
    if group is not None:
        return group.get_rank(), group.get_world_size()
    for rank, size in _VARIABLES:
        try:
            return int(os.environ[rank]), int(os.environ[size])
        except (KeyError, ValueError):
            continue
    return 0, 1


def known_size() -> int | None:
    """The number of ranks, where it is known before the program makes its group; None: it is not."""
    group = _group()
    if group is not None:
        return group.get_world_size()
    try:
        return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else None
    except (KeyError, ValueError):
        return None


def several() -> bool:
    return world()[1] > 1


def on_this_machine() -> int:
    """How many ranks share its memory; all of them where the launcher does not say."""
    size = world()[1]
    try:
        return min(size, max(1, int(os.environ["LOCAL_WORLD_SIZE"])))
    except (KeyError, ValueError):
        return size


def on_several_machines() -> bool:
    return on_this_machine() < world()[1]


def is_first_of_machine() -> bool:
    return os.environ.get("LOCAL_RANK") == "0"


def is_on_this_machine(rank: int) -> bool:
    """Launchers number the ranks of a machine in a row."""
    own, local = world()[0], os.environ.get("LOCAL_RANK", "")
    first = own - int(local) if local.isdecimal() else own
    return first <= rank < first + on_this_machine()


def parallel_models() -> list[Any]:
    """The models of DistributedDataParallel in this process."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    kind = getattr(module, "DistributedDataParallel", None)
    if kind is None:
        return []
    from . import optimizer_members  # not before torch is there: launchers import this module too

    return optimizer_members.instances(kind)


def was_reduced(model: Any) -> bool:
    """Did the last backward of this DistributedDataParallel exchange its gradients? After a forward under no_sync it
    does not, also where the block has ended by the step."""
    return model.require_backward_grad_sync and getattr(model, "require_forward_param_sync", True)


def seen_by_all(parameters: Iterable[Tensor], by_everyone: bool = False) -> bool:
    """Is one of these parameters' gradients the same on every rank, because DistributedDataParallel averaged it?
    by_everyone: over all ranks of the run, not some of them."""
    wanted = {id(p) for p in parameters}
    for model in parallel_models():
        if by_everyone and model.process_group.size() != world()[1]:
            continue
        ignored = getattr(model, "parameters_to_ignore", ())
        for name, p in model.module.named_parameters():
            if id(p) in wanted and name not in ignored and was_reduced(model):
                return True
    return False


def may_do_alone(action: str, alarm: Alarm, all_see: Callable[[], bool]) -> str:
    """The action, or what this rank does instead: skipped on one rank only, a step would let its weights differ from
    the others'. all_see: a function: do all ranks see what is bad."""
    if action != "skip" or not several() or all_see():
        return action
    alarm["text"] += "; other ranks may not see it, so this one does not skip the step alone"
    return "warn" if alarm["harmless"] else "stop"


def alone() -> dict[str, str]:
    """Environment variables with which a process of a launcher's can be started once more beside itself: a place of its
    own for the process group to meet. Nothing for a process that no launcher numbered."""
    if "MASTER_PORT" not in os.environ:
        return {}
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}


def not_from_here(found: Findings) -> Findings:
    """Findings of a rank, in which a value that no operation of this process wrote came through a collective one."""
    births = found.get("births") or []
    if exchanges := births[0].get("exchanges") if births else None:
        groups = {name: members for name, _, _, members in compat.process_groups()}
        for one in exchanges:
            if one["group"] in groups:
                one["ranks"] = groups[one["group"]]
    if not several() or not births or any(b["phase"] != "memory" or b["op"] for b in births):
        return found
    text = "no operation of this rank wrote the value: it came from another rank, through a collective operation"
    came: list[Birth] = [{**b, "phase": "communication"} for b in births]
    cause: Cause = {"class": "other-rank", "confidence": "possible", "text": text, "experiments": []}
    return {**found, "births": came, "cause": cause, "fix": None}
