"""`finitude export RUN --to dcp -o FOLDER`: what a bad step began with, as a checkpoint of
torch.distributed.checkpoint."""

from __future__ import annotations

import os
import warnings

from ..capsules import step_manifest
from . import replay_ranks

EXIT_INPUT, EXIT_CANNOT = 3, 4


def _capsules_at(path):
    """(folders of capsules by rank, number of ranks). Raises OSError, ValueError."""
    if os.path.exists(os.path.join(path, "capsule.json")):
        return {0: path}, 1
    if (found := replay_ranks.manifest_of(path)) is not None:
        where, document = found
        return step_manifest.capsules(where, document), document["world_size"]
    steps = sorted(name for name in os.listdir(path) if step_manifest.NAME.fullmatch(f"{name}.json"))
    return ({0: os.path.join(path, steps[-1])}, 1) if steps else ({}, 1)


def write(path: str, output: str) -> tuple[int, list[str]]:
    """(exit code, what is to be said). path: of a run, a manifest or a capsule."""
    if os.path.exists(output) and (not os.path.isdir(output) or os.listdir(output)):
        return EXIT_CANNOT, [f"{output} is there already, and no empty folder: name another one"]
    try:
        folders, size = _capsules_at(path)
    except (OSError, ValueError) as e:
        return EXIT_INPUT, [f"{path}: {e}"]
    if not folders:
        return EXIT_INPUT, [f"{path}: it is no capsule, and holds none"]
    import torch.distributed.checkpoint as dcp

    from ..capsules import whole_state

    try:
        state, notes = whole_state.read(folders, size)
    except whole_state.Damaged as e:
        return EXIT_INPUT, [str(e)]
    except whole_state.Incomplete as e:
        return EXIT_CANNOT, [f"{path}: {e}"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group
            dcp.save(state, checkpoint_id=output, no_dist=True)
    except Exception as e:  # of torch, which is of any version
        return EXIT_CANNOT, [f"torch.distributed.checkpoint could not write {output}: {type(e).__name__}: {e}"[:300]]
    return 0, [*notes, f"written to {output}: the state of {len(folders)} of {size} ranks"]
