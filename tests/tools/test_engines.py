"""The engines of an installation: the one that fits the torch is loaded, and what is said where none does."""

import pathlib
import re
import subprocess
import sys

import pytest

from finitude import _native
from finitude.base import compat, engines, programs

ENGINE = pathlib.Path(_native.__file__)


def fake_torch(folder, version):
    """A torch that says its version and cannot be imported."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\n")


def run(folder, *words):
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60)


def missing_engine():
    return next((2, minor) for minor in range(13, 6, -1) if (2, minor) not in engines.folders())


def needed(path):
    listed = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", listed)


def test_the_engine_lies_in_its_torch_folder():
    import torch

    folder = engines.folders()[compat.torch_version(torch.__version__)]
    assert str(ENGINE.parent) == folder and _native.__name__ == "finitude._native"
    assert programs.path_of(programs.PLAYER) == str(ENGINE.with_name("finitude-replay"))
    assert sys.modules["finitude._native"] is _native


@pytest.mark.parametrize("program", [ENGINE, ENGINE.with_name("finitude-replay"), programs.path_of(programs.OFFLINE)])
def test_what_is_built_needs_torch_and_system(program):
    system = r"lib(stdc\+\+|gcc_s|m|c|dl|pthread|rt)\.so\.\d+|ld-linux.*"
    assert [n for n in needed(program) if not re.fullmatch(rf"libtorch\w*\.so|libc10\.so|{system}", n)] == []


def test_what_is_shipped_is_small():
    """8.8, 6.0 and 6.2 MB, did the linker keep what nothing calls; the engine 7.9, were all of it compiled for speed."""
    for program, most in (
        (ENGINE, 7.2),
        (ENGINE.with_name("finitude-replay"), 2),
        (programs.path_of(programs.OFFLINE), 4),
    ):
        assert pathlib.Path(program).stat().st_size < most * 1e6


def test_the_player_finds_all_its_functions():
    listed = subprocess.run(["ldd", "-r", ENGINE.with_name("finitude-replay")], capture_output=True, text=True)
    assert "undefined symbol" not in listed.stdout + listed.stderr and "not found" not in listed.stdout
    openmp = [line for line in listed.stdout.splitlines() if "gomp" in line]
    assert len(openmp) == 1 and "/torch" in openmp[0], "one OpenMP, and that of torch"


@pytest.mark.parametrize("version, said", [("2.6.0", "2.7 to 2.15"), ("2.99.0+cu999", "2.7 to 2.15"), (None, "")])
def test_import_names_the_supported_torches(tmp_path, version, said):
    if version is None:
        version = "{}.{}.0".format(*missing_engine())
        said = "was built for torch 2."
    fake_torch(tmp_path, version)
    ended = run(tmp_path, "-c", "import finitude")
    assert ended.returncode == 0 and ended.stderr.count("\n") == 1, ended.stderr
    assert said in ended.stderr and f"torch {version}" in ended.stderr


def test_watch_fails_in_one_line_without_torch_imported(tmp_path):
    fake_torch(tmp_path, "3.1.0")
    program = "import finitude._native"
    ended = run(tmp_path, "-W", "ignore", "-c", program)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1 and last.startswith("ImportError: torch 3.1.0 is outside"), ended.stderr
    assert "torch was imported" not in ended.stderr


def test_no_torch_is_no_reason_to_warn(tmp_path):
    program = "import sys; sys.modules['torch'] = None; import finitude; import finitude._native"
    ended = run(tmp_path, "-c", program)
    assert "Warning" not in ended.stderr and ended.stderr.splitlines()[-1].startswith("ImportError: torch is not inst")


@pytest.mark.parametrize("words", [["-m", "finitude", "--version"], ["-m", "finitude", "list"]])
def test_commands_without_torch_warn_of_nothing(tmp_path, words):
    fake_torch(tmp_path, "3.1.0")
    assert "Warning" not in run(tmp_path, *words).stderr


def test_several_engines_are_named(monkeypatch):
    monkeypatch.setattr(engines, "folders", lambda: {(2, 9): "", (2, 12): "", (2, 8): ""})
    assert "built for torch 2.8, 2.9 and 2.12, and this is torch 2.10.1 (" in engines.why_none("2.10.1")
    assert engines.why_none("2.9.0a0+git") is None
    monkeypatch.setattr(engines, "folders", dict)
    assert "pip install ." in engines.why_none("2.9.0")
