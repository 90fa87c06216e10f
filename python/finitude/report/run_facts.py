"""What run.json says of where a run came from: packages, environment, commit, hyper-parameters. Every part is bounded,
and none starts a process."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys

import torch
from torch.utils.data import DataLoader

from .. import _native
from ..base import control, git, secrets, working_folder
from ..program import torch_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ..base.types import Config, Process

# Of the environment, in addition to what capsules keep: settings of torch and its libraries, and how processes find
# each other. Nothing else is written down unless it is asked for.
PREFIXES = (
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "XLA_",
    "HF_",
)
NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
)
# Of the job that a run belongs to: key -> variable. All are short texts that a scheduler or launcher has set.
JOB = {
    "slurm_job": "SLURM_JOB_ID",
    "slurm_nodes": "SLURM_JOB_NODELIST",
    "slurm_node_count": "SLURM_JOB_NUM_NODES",
    "slurm_restarts": "SLURM_RESTART_COUNT",
    "slurm_end": "SLURM_JOB_END_TIME",  # Unix seconds
    "elastic_run": "TORCHELASTIC_RUN_ID",
    "elastic_restarts": "TORCHELASTIC_RESTART_COUNT",
    "elastic_most_restarts": "TORCHELASTIC_MAX_RESTARTS",
}
MOST_PACKAGES = 2000
MOST_VARIABLES = 200
MOST_TEXT = 500  # characters of a value
MOST_KEYS = 40  # hyper-parameters of a group
MOST_GROUPS = 20
MOST_LOADERS = 20
_DISTRIBUTION = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9.!+_]+)\.dist-info$")


def packages(path: Sequence[str]) -> dict[str, str]:
    """{name: version} of what is installed, by the names of the folders that pip leaves; none is opened."""
    found: dict[str, str] = {}
    for folder in path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = _DISTRIBUTION.match(name)
            if match and len(found) < MOST_PACKAGES:
                found.setdefault(match[1].replace("_", "-").lower(), match[2])
    return dict(sorted(found.items()))


def environment(variables: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """wanted: further names than those of PREFIXES and NAMES. Values of secrets are masked."""
    names = {*NAMES, *wanted}
    found = {}
    for name, value in sorted(variables.items()):
        if (name in names or name.startswith(PREFIXES)) and len(found) < MOST_VARIABLES:
            found[name] = secrets.MASK if secrets.is_secret(name) else secrets.masked_words([value])[0][:MOST_TEXT]
    return found


def job(variables: Mapping[str, str]) -> dict[str, str]:
    """Which job of a scheduler or launcher this process belongs to, and how often it was started again."""
    return {key: variables[name][:MOST_TEXT] for key, name in JOB.items() if variables.get(name)}


def hyper_parameters(optimizer: Any, redact: bool = False) -> dict[str, Any]:
    """Its class, and the numbers, texts and truth values of each group. Values of tensors are not read. redact: without
    texts."""
    groups = []
    for group in list(optimizer.param_groups)[:MOST_GROUPS]:
        kept = {
            key: _plain(secrets.masked_value(str(key), value))
            for key, value in group.items()
            if key != "params" and _is_plain(value) and not (redact and _holds_text(value))
        }
        groups.append({**dict(list(kept.items())[:MOST_KEYS]), "parameters": len(group.get("params", ()))})
    return {"class": type(optimizer).__name__, "groups": groups}


def at_first_step(redact: bool) -> dict[str, Any]:
    """Switches of torch and, as in a capsule, seeds: the program has set them by now."""
    seeds = {} if redact else {"seeds": torch_flags.seeds()}
    return {"data": data_sets(), "flags": torch_flags.flags(may_warn=False), **seeds}


def data_sets() -> list[dict[str, Any]]:
    """Of each DataLoader there is: class and length of its data set, class of its sampler, size of a batch, workers. No
    row is read: that would be code of the program, and could draw random numbers."""
    found = []
    for loader in _native.instances((DataLoader,))[:MOST_LOADERS]:
        facts = {
            "class": type(loader.dataset).__name__,
            "length": _length(loader),
            "sampler": type(loader.sampler).__name__,
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "workers": loader.num_workers,
        }
        if facts not in found:
            found.append(facts)
    return found


def _length(loader):
    """None where it is not known. A data set may open its files when it is asked: only where torch's sampler asks it as
    well."""
    dataset = loader.dataset
    if all(getattr(loader.sampler, name, None) is not dataset for name in ("data_source", "dataset")):
        return None
    try:
        length = len(dataset)
    except Exception:  # of the program's code
        return None
    return length if type(length) is int else None


def _is_plain(value):
    if isinstance(value, (tuple, list)):
        return len(value) <= 8 and all(type(v) in (int, float, bool, str) for v in value)
    return value is None or type(value) in (int, float, bool, str)


def _holds_text(value):
    return any(isinstance(v, str) for v in (value if isinstance(value, (tuple, list)) else (value,)))


def _plain(value):
    return value[:MOST_TEXT] if isinstance(value, str) else value


def of_start(
    config: Config, script: str, command: Sequence[str], started: datetime.datetime, process: Process, is_kept: bool
) -> dict[str, Any]:
    """run.json before the first step: how the process of a run was started, and who it is. command: without secrets.
    is_kept: the run has a report of its own."""
    document = {
        "schema": 1,
        "process": process,
        "started": started.isoformat(timespec="seconds"),
        "command": command,
        "script": script,
        "finitude": _native.version,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "on_alarm": config.on_alarm,
        "level": config.level,
        "ctl": control.taken(config),
        "optimizers": [],
    }
    if config.redact:
        document.update(command=[], script="")
    elif is_kept:
        document.update(_at_start(script, config.record_env))
    return document


def _at_start(script, record_env):
    """record_env: the option of that name."""
    wanted = [*filter(None, record_env.replace(" ", "").split(",")), *json.loads(_native.kept_environment())]
    cwd = working_folder.current()
    folder = os.path.dirname(working_folder.absolute(script)) if script and os.path.exists(script) else cwd
    return {
        "packages": packages(sys.path),
        "environment": environment(os.environ, wanted),
        "job": job(os.environ),
        "git": git.head(folder),
        "cwd": cwd,
    }
