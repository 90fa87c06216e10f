"""Libraries for torch that tests load, compiled from tests/native."""

import os
import pathlib
import shutil
import subprocess

import pytest
import torch

import built_once

NATIVE = pathlib.Path(__file__).resolve().parent / "native"


def compiled(source, name):
    """The path of tests/native/`source`, compiled against this torch into a library called `name`."""
    return str(built_once.made(source, lambda folder: _compile(source, folder, name)) / name)


def _compile(source, folder, name):
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    home = pathlib.Path(torch.__file__).parent
    out, object_file = folder / name, folder / "library.o"
    launcher = [shutil.which("ccache")] if shutil.which("ccache") else []
    subprocess.run(
        [
            *launcher,
            compiler,
            "-std=c++20",
            "-O0",
            "-fPIC",
            "-DNDEBUG",
            "-D_GLIBCXX_USE_CXX11_ABI=1",
            "-w",
            "-isystem",
            str(home / "include"),
            "-isystem",
            str(home / "include/torch/csrc/api/include"),
            "-c",
            str(NATIVE / source),
            "-o",
            str(object_file),
        ],
        check=True,
    )
    subprocess.run(
        [compiler, "-shared", str(object_file), "-o", str(out), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"], check=True
    )
