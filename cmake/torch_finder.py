"""Finds the torch of the environment that a build is for.

pip, uv and build compile in an environment of their own, in which the installed torch is not importable, and its folder
is in no setting. What is known of the other environment: pip runs its backend with the very interpreter it installs for;
uv and build do not, but one of the processes that called this one is `uv` or that interpreter, and its command line and
environment name what it installs into. Each interpreter found so is asked where its torch is."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping

PROC = pathlib.Path("/proc")
ANCESTORS = 6  # pip or uv, what wraps them, and shells between
ASK = (
    "import importlib.util as u, sysconfig as s; t = u.find_spec('torch');"
    "print(s.get_config_var('SOABI'), next(iter(t and t.submodule_search_locations or ()), ''))"
)


@dataclasses.dataclass(frozen=True)
class Process:
    words: list[str]  # its command line
    environment: Mapping[str, str]
    folder: pathlib.Path | None  # where it works


def find() -> pathlib.Path | None:
    """The folder of the torch, which is not imported; None if there is none for this version of Python."""
    for entry in filter(None, sys.path):  # no isolation
        if (pathlib.Path(entry) / "torch/version.py").is_file():
            return pathlib.Path(entry) / "torch"
    asked = set()
    for python, environment in interpreters():
        # Not resolved: the python of a venv is a link to another one, and knows by its path that it is not that one.
        key = (os.path.abspath(python), environment.get("PYTHONPATH"))
        if key in asked:
            continue
        asked.add(key)
        torch = torch_of(python, environment)
        if torch is not None:
            return torch
    return None


def interpreters() -> Iterator[tuple[str, Mapping[str, str]]]:
    """(path, environment) of each that may be the one to install for, the most likely first."""
    # What isolates this process is in PYTHONPATH; what the user set there is still in that of the process above it.
    yield sys.executable, {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for process in ancestors():
        program = pathlib.Path(process.words[0]).name if process.words else ""
        if program.startswith("python"):
            found = shutil.which(process.words[0], path=process.environment.get("PATH"))
            named = [found] if found else []
        elif program in ("uv", "uvx"):
            named = list(of_uv(process))
        else:
            named = []
        for python in named:
            yield python, process.environment
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            if folder := process.environment.get(name):
                yield python_in(folder), process.environment
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := os.environ.get(name):
            yield python_in(folder), {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def of_uv(process: Process) -> Iterator[str]:
    """The interpreters that uv would install for, in its own order."""
    words, environment = process.words, process.environment
    for word, after in zip(words, [*words[1:], ""]):
        if word in ("--python", "-p"):
            yield python_at(after, environment)
        elif word.startswith("--python="):
            yield python_at(word.partition("=")[2], environment)
    if named := environment.get("UV_PYTHON"):
        yield python_at(named, environment)
    if "--system" in words or environment.get("UV_SYSTEM_PYTHON"):
        yield python_at("python3", environment)
    active = [environment[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    project = [environment["UV_PROJECT_ENVIRONMENT"]] if environment.get("UV_PROJECT_ENVIRONMENT") else []
    if process.folder is not None:
        project += [str(folder / ".venv") for folder in (process.folder, *process.folder.parents)]
    # `uv pip` takes the active environment first, `uv sync` and `uv run` that of the project.
    for folder in [*active, *project] if "pip" in words else [*project, *active]:
        yield python_in(folder)


def python_in(folder: str) -> str:
    return os.path.join(folder, "bin/python")


def python_at(named: str, environment: Mapping[str, str]) -> str:
    """What --python may be given: an environment, an interpreter, or the name or version of one."""
    if os.path.isdir(named):
        return python_in(named)
    name = f"python{named}" if named[:1].isdigit() else named
    return shutil.which(name, path=environment.get("PATH")) or named


def torch_of(python: str, environment: Mapping[str, str]) -> pathlib.Path | None:
    """The folder of the torch that this interpreter would import; None if it is another version of Python than this
    one."""
    try:
        # From the root: Python looks for modules where it is started.
        done = subprocess.run(
            [python, "-c", ASK], env=dict(environment), cwd="/", capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    abi, _, folder = done.stdout.strip().partition(" ")
    if done.returncode or abi != sysconfig.get_config_var("SOABI") or not folder:
        return None
    return pathlib.Path(folder) if (pathlib.Path(folder) / "version.py").is_file() else None


def ancestors() -> Iterator[Process]:
    """The processes above this one, the nearest first. None where the system has no /proc, or does not show them."""
    pid = str(os.getppid())
    for _ in range(ANCESTORS):
        try:
            words = os.fsdecode((PROC / pid / "cmdline").read_bytes()).split("\0")[:-1]
            pairs = os.fsdecode((PROC / pid / "environ").read_bytes()).split("\0")
            parent = (PROC / pid / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return
        try:
            folder = pathlib.Path(os.readlink(PROC / pid / "cwd"))
        except OSError:
            folder = None
        yield Process(words, dict(pair.split("=", 1) for pair in pairs if "=" in pair), folder)
        pid = parent
