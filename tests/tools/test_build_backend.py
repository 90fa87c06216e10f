"""cmake/build_backend.py: `pip install .` finds the torch of the environment, and says in one line what is missing."""

import os
import pathlib
import subprocess
import sys
import venv

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CALL = "import build_backend; print(build_backend._checked(None)['cmake.define.FINITUDE_TORCH_DIR'])"


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    """A venv without torch, and a folder that stands for pip's own build environment: scikit-build-core and no
    torch."""
    folder = tmp_path_factory.mktemp("isolated")
    venv.create(folder / "venv", with_pip=False)
    overlay = folder / "overlay"
    overlay.mkdir()
    (overlay / "scikit_build_core").mkdir()
    (overlay / "scikit_build_core/__init__.py").touch()
    hooks = (
        "get_requires_for_build_sdist",
        "build_sdist",
        "prepare_metadata_for_build_wheel",
        "build_wheel",
        "prepare_metadata_for_build_editable",
        "get_requires_for_build_wheel",
        "get_requires_for_build_editable",
        "build_editable",
    )
    (overlay / "scikit_build_core/build.py").write_text("".join(f"def {h}(*args): return args\n" for h in hooks))
    return folder


def site_packages(folder):
    return folder / f"venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def call(folder, **changes):
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "CMAKE_ARGS", "CMAKE_PREFIX_PATH")
    }
    environment |= {"PYTHONPATH": f"{folder / 'overlay'}:{ROOT / 'cmake'}"} | changes
    return subprocess.run([folder / "venv/bin/python", "-c", CALL], env=environment, capture_output=True, text=True)


def test_without_torch_one_line_says_what_to_type(isolated):
    ended = call(isolated)
    assert ended.returncode == 1
    assert "pip install torch" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_build_finds_environment_torch_despite_isolation(isolated):
    torch = site_packages(isolated) / "torch"
    torch.mkdir()
    try:
        (torch / "version.py").write_text("__version__ = '2.13.0'\n")
        ended = call(isolated)
        assert ended.returncode == 0, ended.stderr
        assert pathlib.Path(ended.stdout.strip()).samefile(torch)
    finally:
        (torch / "version.py").unlink()
        torch.rmdir()


def test_an_active_environment_is_found_from_another_python(isolated, tmp_path):
    purelib = tmp_path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
    purelib.mkdir(parents=True)
    (purelib / "version.py").write_text("__version__ = '2.13.0'\n")
    ended = call(isolated, VIRTUAL_ENV=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert pathlib.Path(ended.stdout.strip()).samefile(purelib)


@pytest.mark.parametrize(
    "compiler, named",
    [
        ("no-such-compiler", "there is no no-such-compiler"),
        ("without-headers", "hwy/highway.h"),
    ],
)
def test_missing_packages_are_named_before_anything_compiles(isolated, tmp_path, compiler, named):
    torch = tmp_path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
    torch.mkdir(parents=True)
    (torch / "version.py").touch()
    bare = tmp_path / "without-headers"
    bare.write_text('#!/bin/sh\nexec g++ -nostdinc "$@"\n')
    bare.chmod(0o755)
    ended = call(isolated, VIRTUAL_ENV=str(tmp_path), CXX=str(bare) if compiler == "without-headers" else compiler)
    assert ended.returncode == 1
    assert named in ended.stderr
    assert "apt-get install g++ libhwy-dev nlohmann-json3-dev libcli11-dev" in ended.stderr
    assert ended.stderr.count("\n") == 1
