"""Installs the source tree in each way that docs/install.md lists, and marks there which work.

    python tools/install_test.py [--no-page] [WAY ...]

For each way: a bare venv that has torch (linked in from .venv), the command in a copy of the sources without a build
folder, then, there: `finitude --version`, and `finitude run` of a small program whose step 5 has a NaN, which must be
stopped and its line named. One build at a time; ccache, where it is installed, makes all but the first quick."""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from torch_environments import BUILD_JOBS, ROOT
from wheels_test import Bare

HOME = ROOT / "build/install"
TREES = HOME / "trees"  # below it is what is compiled, also where pip unpacks an archive: one base folder for ccache
PAGE = ROOT / "docs/install.md"
BACKEND = ["pip", "install", "scikit-build-core", "nlohmann-json", "cmake", "ninja"]
# By the command that the page lists: commands before it, and itself, run in the source tree with the venv on PATH.
WAYS = {
    "pip install .": [["pip", "install", "."]],
    "pip install --no-build-isolation .": [BACKEND, ["pip", "install", "--no-build-isolation", "."]],
    "pip install -e .": [["pip", "install", "-e", "."]],
    "uv pip install .": [["pip", "install", "uv"], ["uv", "pip", "install", "--no-cache", "."]],
    "python -m build --wheel": [
        ["pip", "install", "build"],
        ["python", "-m", "build", "--wheel"],
        ["sh", "-c", "pip install --no-index dist/*.whl"],
    ],
    "python -m build --sdist": [
        ["pip", "install", "build"],
        ["python", "-m", "build", "--sdist"],
        ["sh", "-c", "pip install dist/*.tar.gz"],
    ],
}
PROGRAM = """import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    x = torch.ones(2, 4)
    optimizer.zero_grad()
    loss = (model(x) * torch.log(x.mean() - 2 * (step == 5))).sum()
    loss.backward()
    optimizer.step()
"""


def copy_sources(tree):
    """What git has of this tree and what it would take."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=ROOT)
    for name in filter(None, os.fsdecode(listed).split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def variables(bare):
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX") and "PYTHON" not in k}
    return kept | {
        "PATH": f"{bare.bin}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(bare.folder / "venv"),
        "TMPDIR": str(TREES),
        "CMAKE_BUILD_PARALLEL_LEVEL": BUILD_JOBS,
        "CCACHE_BASEDIR": str(TREES),
        "CCACHE_SLOPPINESS": "pch_defines,time_macros",  # torch's headers are compiled once, for all files
    }


def problem(bare, tree, commands, editable):
    """What does not hold after these commands, or None."""
    with (HOME / "log.txt").open("a") as log:
        for command in commands:
            print(f"    {' '.join(command)}", flush=True)
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            words = ["python", "-m", *command] if command[0] == "pip" else command
            if subprocess.run(words, cwd=tree, env=variables(bare), stdout=log, stderr=subprocess.STDOUT).returncode:
                return f"{' '.join(command)} failed: {log.name}"
    version = bare.run(bare.bin / "finitude", "--version")
    if (ROOT / "VERSION").read_text().strip() not in version.stdout:
        return f"finitude --version: {version.stdout}{version.stderr}"
    asked = bare.run(bare.bin / "python", "-c", "import finitude; print(finitude.__file__)").stdout
    if not asked.startswith(str(tree if editable else bare.folder / "venv")):
        return f"finitude is imported from {asked}"
    (bare.folder / "train.py").write_text(PROGRAM)
    ended = bare.run(bare.bin / "finitude", "run", "--report", "report.json", "--runs", "runs", "train.py")
    try:
        alarm = json.loads((bare.folder / "report.json").read_text())["alarms"][0]
        birth = alarm["births"][0]
    except (OSError, LookupError):
        return f"finitude run: {ended.stdout}{ended.stderr}"
    named = (alarm["step"], birth["op"], pathlib.Path(birth["file"] or "").name, birth["line"])
    if ended.returncode == 0 or named != (5, "aten::log", "train.py", 7):
        return f"named is {named}"
    return None


def mark(page, command, word):
    """The page with that word in the last column of the command's row."""
    row = re.compile(rf"^(\| `{re.escape(command)}` \|.*\|)[^|]*\|$", re.MULTILINE)
    marked, found = row.subn(lambda match: f"{match[1]} {word} |", page)
    if found != 1:
        raise ValueError(f"docs/install.md has {found} rows of {command}")
    return marked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", metavar="WAY", nargs="*", help=f"one of: {', '.join(WAYS)}")
    parser.add_argument("--no-page", action="store_true", help="leave docs/install.md as it is")
    options = parser.parse_args()
    for way in options.ways:
        if way not in WAYS:
            parser.error(f"no way {way!r}; there is: {', '.join(WAYS)}")
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "log.txt").write_text("")
    bad = 0
    for way in options.ways or WAYS:
        print(way, flush=True)
        started = time.monotonic()
        shutil.rmtree(TREES, ignore_errors=True)
        copy_sources(TREES / "finitude")
        why = problem(Bare(HOME / "bare", sys.executable, ()), TREES / "finitude", WAYS[way], way == "pip install -e .")
        print(f"    {why or 'works'}, {time.monotonic() - started:.0f} s", flush=True)
        bad += why is not None
        if not options.no_page:
            word = f"{'failed' if why else 'works'} ({datetime.date.today().isoformat()})"
            PAGE.write_text(mark(PAGE.read_text(), way, word))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
