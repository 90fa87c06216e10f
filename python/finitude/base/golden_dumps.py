"""What --golden names: the dumps of another run, by the number of their step. No torch."""

from __future__ import annotations

import mmap
import os
import re

MOST_FILES = 100_000
_OUR_NAME = re.compile(r"step-([0-9]{1,9})\.json")
_THEIR_FOLDER = re.compile(r"step([0-9]{1,9})")  # msprobe: step3/rank0/dump.json


def find(path: str, rank: int = 0) -> dict[int, str]:
    """{step: file} of a dump, a folder of dumps, a run's folder, or the folder that msprobe writes. Of several ranks
    those of this one; where they are of a single process they are of rank 0. Raises ValueError, with what is taken."""
    if os.path.isfile(path):
        return {_step_of(path): path} if rank == 0 else {}
    if not os.path.isdir(path):
        raise ValueError(f"{path} does not exist")
    ranks = sorted(name for name in _names(path) if re.fullmatch("rank-[0-9]+", name))
    folder = os.path.join(path, f"rank-{rank}") if ranks else path
    for inside in (os.path.join(folder, "dumps"), folder):
        files = {int(m[1]): os.path.join(inside, name) for name in _names(inside) if (m := _OUR_NAME.fullmatch(name))}
        if files:
            return files if ranks or rank == 0 else {}
    theirs = {}
    for name in _names(path):
        file = os.path.join(path, name, f"rank{rank}", "dump.json")
        if (match := _THEIR_FOLDER.fullmatch(name)) and os.path.isfile(file):
            theirs[int(match[1])] = file
    if not theirs and not ranks and rank == 0:
        raise ValueError(f"{path} holds no dumps: name step-NNNNNN.json, a folder with such files, or that of a run")
    return theirs


def kind_of(file: str) -> str:
    """With which --dump a file can be compared: that which it was made with."""
    if os.path.basename(file) == "dump.json":
        return "checksums"
    kind, level = "statistics", ""
    try:
        with open(file, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b'"checksum"') >= 0:
                kind, level = "checksums", "+operators-only" * (content.find(b'"storage"') >= 0)  # no module has that
    except (OSError, ValueError):  # an empty one cannot be mapped
        pass
    return ("tensors" if os.path.isfile(file.removesuffix(".json") + ".safetensors") else kind) + level


def _names(folder):
    try:
        return os.listdir(folder)[:MOST_FILES]
    except OSError:
        return []


def _step_of(path):
    if match := _OUR_NAME.fullmatch(os.path.basename(path)):
        return int(match[1])
    steps = [m[1] for part in os.path.abspath(path).split(os.sep) if (m := _THEIR_FOLDER.fullmatch(part))]
    return int(steps[-1]) if steps else 0
