"""Environments with another Python or torch than .venv, below build/matrix: for test_matrix.py and wheels.py.

torch is installed without its dependencies: a CUDA build would bring gigabytes that the CPU never loads, so
stub_libraries.py replaces what is missing. 20 seconds and 1.5 GB each."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import stub_libraries

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAIR = re.compile(r"(3\.\d+):(\d+(?:\.\d+)+)")
BUILD_JOBS = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")  # a torch file takes about 1 GB to compile
TORCH_DEPENDENCIES = "filelock typing_extensions sympy networkx jinja2 fsspec numpy setuptools".split()


def find_python(version):
    """A working interpreter of that minor version, or None. pyenv's shims answer only where a version is selected."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")) + [shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        answer = subprocess.run([str(candidate), "--version"], capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.startswith(f"Python {version}."):
            return str(candidate)
    return None


def run(title, command, log, **options):
    """Runs a step; True if it succeeded. Its output goes to the log."""
    started = time.monotonic()
    with log.open("a") as out:
        out.write(f"\n$ {' '.join(map(str, command))}\n")
        out.flush()
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, **options).returncode
    print(
        f"    {title}: {'done' if code == 0 else f'failed (exit {code})'}, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return code == 0


class Environment:
    """A venv of that Python with that torch."""

    def __init__(self, version, torch):
        self.version, self.torch = version, torch
        self.folder = ROOT / f"build/matrix/python{version}-torch{torch}"
        self.log = self.folder / "log.txt"
        self.python = self.folder / "venv/bin/python"
        self.pip = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        self.variables = dict(os.environ)

    def make(self, python, packages):
        """The title of the step that failed, or None. packages: what is installed besides torch."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        print(f"    log: {self.log.relative_to(ROOT)}", flush=True)
        steps = (
            ("environment", [python, "-m", "venv", self.folder / "venv"]),
            (
                f"torch {self.torch}",
                [*self.pip, "--no-deps", f"torch=={self.torch}{'.*' * (self.torch.count('.') < 2)}"],
            ),
            ("packages", [*self.pip, *TORCH_DEPENDENCIES, *packages]),
        )
        for title, command in steps:
            if not run(title, command, self.log):
                return title
        torch_folder = self.folder / f"venv/lib/python{self.version}/site-packages/torch"
        stubs = self.folder / "stubs"
        shutil.rmtree(stubs, ignore_errors=True)
        made = stub_libraries.make_stubs(torch_folder, stubs)
        for name in made:  # where torch's own libraries look: programs of the tests start without LD_LIBRARY_PATH
            shutil.copy(stubs / name, torch_folder / "lib" / name)
        print(f"    stand-ins for {len(made)} CUDA libraries", flush=True)
        paths = [str(stubs), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.variables |= {
            "LD_LIBRARY_PATH": ":".join(paths),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "CMAKE_BUILD_PARALLEL_LEVEL": BUILD_JOBS,
        }
        return None

    @property
    def build_folder(self):
        return f"--config-settings=build-dir={self.folder / 'cmake'}"  # -C came with pip 23.1, Python 3.10 brings 23.0


class Installed(Environment):
    """The environment that runs this, .venv: its build folder is that of `make build`."""

    def __init__(self):
        import torch

        super().__init__(".".join(map(str, sys.version_info[:2])), torch.__version__.partition("+")[0])
        self.folder, self.log = ROOT / "build/wheels", ROOT / "build/wheels/log.txt"
        self.python = pathlib.Path(sys.executable)

    def make(self, python, packages):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        return None

    @property
    def build_folder(self):
        return "--config-settings=build-dir=build/{wheel_tag}"
