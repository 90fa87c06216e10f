"""cmake/build_backend.py and cmake/torch_finder.py: `pip install .` finds the torch of the environment, and says in one
line what is missing."""

import os
import pathlib
import subprocess
import sys
import venv

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CALL = """
import os, pathlib, torch_finder
torch_finder.PROC = pathlib.Path(os.environ['TEST_PROC'])
import build_backend
build_backend.KEPT = torch_finder.PROC.parent / 'kept'
print(build_backend.checked(None)['cmake.define.FINITUDE_TORCH_DIR'])
"""
HOOKS = (
    "get_requires_for_build_sdist",
    "build_sdist",
    "prepare_metadata_for_build_wheel",
    "build_wheel",
    "prepare_metadata_for_build_editable",
    "get_requires_for_build_wheel",
    "get_requires_for_build_editable",
    "build_editable",
)
FROM_USER = ("VIRTUAL_ENV", "CONDA_PREFIX", "CMAKE_ARGS", "CMAKE_PREFIX_PATH", "PYTHONPATH")


def environment_with(folder, version=None):
    """A venv, with a torch of that version if one is given. Returns the folder of its torch."""
    venv.create(folder, with_pip=False)
    torch = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
    if version:
        (torch / "include/pybind11").mkdir(parents=True)
        (torch / "include/pybind11/pybind11.h").touch()
        (torch / "__init__.py").touch()
        (torch / "version.py").write_text(f"__version__ = '{version}'\n")
    return torch


class Isolated:
    """A build environment as pip and uv make them: a venv with scikit-build-core and no torch. above: what called it."""

    def __init__(self, folder):
        self.folder = folder
        self.above = []
        environment_with(folder / "isolated")
        (folder / "overlay/scikit_build_core").mkdir(parents=True)
        (folder / "overlay/scikit_build_core/__init__.py").touch()
        (folder / "overlay/scikit_build_core/build.py").write_text("".join(f"def {h}(*_): pass\n" for h in HOOKS))

    def write_processes(self):
        proc, pid = self.folder / "proc", os.getpid()
        for number, (words, environment, cwd) in enumerate(self.above):
            entry = proc / str(pid if number == 0 else number)
            entry.mkdir(parents=True)
            (entry / "cmdline").write_text("".join(f"{word}\0" for word in words))
            (entry / "environ").write_text("".join(f"{k}={v}\0" for k, v in environment.items()))
            (entry / "stat").write_text(f"9 (a b) c) S {number + 1} 1 1\n")
            (entry / "cwd").symlink_to(cwd)
        return proc

    def call(self, **changes):
        environment = {k: v for k, v in os.environ.items() if k not in FROM_USER}
        environment |= {"PYTHONPATH": f"{self.folder / 'overlay'}:{ROOT / 'cmake'}"} | changes
        environment["TEST_PROC"] = str(self.write_processes())
        return subprocess.run(
            [self.folder / "isolated/bin/python", "-c", CALL], env=environment, capture_output=True, text=True
        )


@pytest.fixture
def isolated(tmp_path):
    return Isolated(tmp_path)


def expect(ended, torch):
    assert ended.returncode == 0, ended.stderr
    assert pathlib.Path(ended.stdout.strip()).samefile(torch)


def expect_line(ended, *words):
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert all(word in ended.stderr for word in words), ended.stderr


def test_without_torch_one_line_says_what_to_type(isolated):
    expect_line(isolated.call(), "pip install torch")


def test_pip_runs_the_python_it_installs_for(isolated):
    torch = environment_with(isolated.folder / "isolated", "2.13.0")
    expect(isolated.call(), torch)


@pytest.mark.parametrize("shells_between", [0, 2])
def test_the_interpreter_that_called_is_asked(isolated, tmp_path, shells_between):
    torch = environment_with(tmp_path / "target", "2.13.0")
    isolated.above = [(["/bin/sh", "-c", "x"], {}, "/")] * shells_between
    isolated.above += [(["python", "-m", "build"], {"PATH": str(tmp_path / "target/bin")}, "/")]
    expect(isolated.call(), torch)


def test_an_active_environment_is_found(isolated, tmp_path):
    torch = environment_with(tmp_path / "active", "2.13.0")
    expect(isolated.call(VIRTUAL_ENV=str(tmp_path / "active")), torch)


@pytest.mark.parametrize(
    "words, variable, chosen",
    [
        ("uv pip install .", "VIRTUAL_ENV", "named"),
        ("uv pip install --python {} .", "", "named"),
        ("uv pip install --python={}/bin/python .", "", "named"),
        ("uv pip install .", "UV_PYTHON", "named"),
        ("uv sync", "UV_PROJECT_ENVIRONMENT", "named"),
        ("uv sync", "VIRTUAL_ENV", "project/.venv"),
        ("uv pip install .", "", "project/.venv"),
    ],
)
def test_uv_names_what_it_installs_into(isolated, tmp_path, words, variable, chosen):
    torches = {name: environment_with(tmp_path / name, "2.13.0") for name in ("named", "project/.venv")}
    (tmp_path / "project/below").mkdir()
    variables = {variable: str(tmp_path / "named")} if variable else {}
    isolated.above = [(words.format(tmp_path / "named").split(), variables, tmp_path / "project/below")]
    expect(isolated.call(VIRTUAL_ENV=str(tmp_path / "isolated")), torches[chosen])


def test_a_python_of_another_version_is_not_taken(isolated, tmp_path):
    other = tmp_path / "other/bin/python"
    other.parent.mkdir(parents=True)
    other.write_text(f"#!/bin/sh\necho cpython-27-x {environment_with(tmp_path / 'x', '2.13.0')}\n")
    other.chmod(0o755)
    expect_line(isolated.call(VIRTUAL_ENV=str(tmp_path / "other")), "pip install torch")


@pytest.mark.parametrize("version, named", [("2.6.0", "2.7 to 2."), ("3.0.0", "torch 3.0.0")])
def test_an_unsupported_torch_is_named_at_once(isolated, version, named):
    environment_with(isolated.folder / "isolated", version)
    expect_line(isolated.call(), named)


def test_a_torch_without_headers_is_named(isolated):
    torch = environment_with(isolated.folder / "isolated", "2.13.0")
    (torch / "include/pybind11/pybind11.h").unlink()
    expect_line(isolated.call(), "pip install torch==2.13.0")


@pytest.mark.parametrize(
    "compiler, named",
    [
        (
            "no-such-compiler",
            ["there is no no-such-compiler", "apt-get install g++ libhwy-dev libcli11-dev zlib1g-dev libsqlite3-dev"],
        ),
        (
            '#!/bin/sh\nexec g++ -nostdinc "$@"\n',
            ["hwy/highway.h", "apt-get install libhwy-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libsqlite3-dev"],
        ),
        ('#!/bin/sh\nexec g++ "$@" -std=c++17\n', ["C++20", "g++ 12"]),
    ],
)
def test_missing_packages_are_named_before_compiling(isolated, tmp_path, compiler, named):
    environment_with(isolated.folder / "isolated", "2.13.0")
    if compiler.startswith("#!"):
        (tmp_path / "compiler").write_text(compiler)
        (tmp_path / "compiler").chmod(0o755)
        compiler = str(tmp_path / "compiler")
    expect_line(isolated.call(CXX=compiler), *named)


def test_headers_of_a_build_requirement_suffice(isolated):
    environment_with(isolated.folder / "isolated", "2.13.0")
    folder = isolated.folder / "overlay/nlohmann_json/include/nlohmann"
    folder.mkdir(parents=True)
    (folder / "json.hpp").touch()
    bare = isolated.folder / "compiler"
    bare.write_text('#!/bin/sh\nexec g++ -nostdinc "$@"\n')
    bare.chmod(0o755)
    ended = isolated.call(CXX=str(bare))
    expect_line(ended, "hwy/highway.h")
    assert "nlohmann" not in ended.stderr
    # The next build finds them where this one did, and as old.
    kept = isolated.folder / "kept/nlohmann/json.hpp"
    began = kept.stat().st_mtime_ns
    for text in ("", "// another version\n"):
        (folder / "json.hpp").write_text(text)
        isolated.call(CXX=str(bare))
        assert kept.read_text() == text and (kept.stat().st_mtime_ns == began) == (text == "")


def compiler_in(folder, words):
    """A compiler that knows no folder for what is linked but those that it is given."""
    (folder / "compiler").write_text(f'#!/bin/sh\nexec g++ {words} "$@"\n')
    (folder / "compiler").chmod(0o755)
    return str(folder / "compiler")


def test_static_libraries_are_asked_for(isolated, tmp_path):
    """zlib.h is there and libz.a is not, as on systems that keep them in two packages."""
    environment_with(isolated.folder / "isolated", "2.13.0")
    linker = tmp_path / "ld"
    linker.write_text('#!/bin/sh\ncase "$*" in *libz.a*) exit 1 ;; esac\nexec ld.bfd "$@"\n')
    linker.chmod(0o755)
    ended = isolated.call(CXX=compiler_in(tmp_path, f"-B{tmp_path}"))
    expect_line(ended, "needs libz.a, which", "apt-get install zlib1g-dev")
    assert "sqlite" not in ended.stderr


@pytest.mark.parametrize("named", ["CMAKE_PREFIX_PATH", "CMAKE_ARGS", "PATH"])
def test_what_lies_below_a_prefix_is_found(isolated, tmp_path, named):
    """As in conda, whose prefix has all but one."""
    torch = environment_with(isolated.folder / "isolated", "2.13.0")
    prefix = tmp_path / "conda"
    (prefix / "lib").mkdir(parents=True)
    for header in ("hwy/highway.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "zlib.h", "Python.h"):
        (prefix / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        (prefix / "include" / header).touch()
    value = {"CMAKE_ARGS": f"-DX=1 -DCMAKE_PREFIX_PATH:PATH={prefix}", "PATH": f"{prefix}/bin:{os.environ['PATH']}"}
    asked = {named: value.get(named, str(prefix)), "CXX": compiler_in(tmp_path, "-nostdinc")}
    ended = isolated.call(**asked)
    expect_line(ended, "needs sqlite3.h, which", "apt-get install libsqlite3-dev")
    (prefix / "include/sqlite3.h").touch()
    expect(isolated.call(**asked), torch)


PROGRESS = """
import build_progress, os, subprocess, sys
build_progress.EVERY = 0
with build_progress.shown('compiling x'):
    print('[3/9 2.0s] Building a.o', flush=True)
    print(os.environ['NINJA_STATUS'], flush=True)
"""


def test_a_terminal_shows_progress_beside_pip():
    """script gives the program a terminal; its stdout is a pipe, as pip's backends have."""
    command = f"{sys.executable} -c \"$PROGRAM\" | sed 's/^/pip: /'"
    done = subprocess.run(
        ["script", "-qec", command, os.devnull],
        env=os.environ | {"PROGRAM": PROGRESS, "PYTHONPATH": str(ROOT / "cmake")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    lines = done.stdout.replace("\r", "").splitlines()
    assert "pip: finitude: compiling x" in lines and "  finitude: compiling x" in lines
    assert "  finitude: 3 of 9 compiled, 0 s" in lines, done.stdout
    assert "pip: [3/9 2.0s] Building a.o" in lines and "pip: [%f/%t %es] " in lines
    assert "pip: finitude: built in 0 s" in lines and "  finitude: built in 0 s" in lines
