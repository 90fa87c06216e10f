"""Capsules of steps that call operators of the user's own library: named where they are missing, replayed where a
person names the library."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import helpers
import native_library
from finitude import _native

PLAYER = pathlib.Path(_native.__file__).parent / "finitude-replay"
PYTHON_OPERATORS = """
import torch
library = torch.library.Library("pyops", "DEF")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: torch.from_numpy(x.numpy() * 0.5), "CPU")
"""


def library():
    """The path of a library that registers userops::soft."""
    return native_library.compiled("operators_of_a_user.cpp", "user operators.so")


# A program of its own: what is registered here would be there in a replay, too.
RECORD = """
import json, sys
import torch
{have}
from finitude import _native
from finitude.capsules import capsule
torch.manual_seed(1)
weight = torch.randn(4, 4)
_native.tape_start()
loss = {call}.sum()
_native.tape_stop()
_native.tape_outcome("loss", "loss", loss)
about = json.dumps({{"kind": "finitude capsule", "torch": torch.__version__, "step": 1}})
why, replayed = _native.capsule_write(sys.argv[1], about, 1 << 30, False, 1 << 30, capsule._source_of)
assert not why, why
"""


def record(folder, have, call):
    script = folder / "program.py"
    script.write_text(RECORD.format(have=have, call=call))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [*helpers.warm_python(), str(script), str(folder / "capsule")],
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(folder / "capsule")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return record(
        tmp_path_factory.mktemp("compiled"),
        f"torch.ops.load_library({library()!r})",
        "torch.ops.userops.soft(weight, 2.0)",
    )


def player(*words, env=None):
    done = subprocess.run(
        [str(PLAYER), *map(str, words)], env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def test_program_without_python_loads_the_named_library(compiled):
    code, said = player("--library", library(), compiled)
    assert code == 0 and "identical" in said, said
    code, said = player(compiled)
    assert code == 4 and "userops::soft (not allowed)" in said
    assert "--allow userops" in said and "--library FILE.so" in said and "--import MODULE" in said
    code, said = player("--allow", "userops", compiled)
    assert code == 4 and "userops::soft (not registered here)" in said and "--library FILE.so" in said


def test_finitude_replay_and_diff_take_it_too(compiled, tmp_path):
    done = helpers.finitude(tmp_path, "replay", compiled, "--library", library())
    assert done.code == 0 and "identical" in done.out, done.text()
    done = helpers.finitude(tmp_path, "replay", compiled)
    assert done.code == 4 and "userops::soft" in done.err and "--library" in done.err, done.text()
    done = helpers.finitude(tmp_path, "diff", compiled, compiled, "--library", library())
    assert done.code == 0 and "no difference" in done.out, done.text()
    assert helpers.finitude(tmp_path, "diff", compiled, compiled).code == 4


def test_libraries_that_cannot_be_loaded(compiled, tmp_path):
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path, reason in (
        (tmp_path / "nowhere.so", "no such file"),
        (text, "cannot be loaded"),
        (tmp_path, "no such file"),
    ):
        code, said = player("--library", path, compiled)
        assert code == 3 and str(path) in said and reason in said, said
        done = helpers.finitude(tmp_path, "diff", compiled, compiled, "--library", str(path))
        assert done.code == 3 and str(path) in done.err and reason in done.err, done.text()
    # A bare name is a file beside the user, never one that the system finds.
    assert player("--library", "libm.so.6", compiled)[0] == 3
    assert player("--library", compiled)[0] == 2 and player("--import", "os", compiled)[0] == 2


@pytest.fixture(scope="module")
def crashing(tmp_path_factory):
    have = f"torch.ops.load_library({library()!r})"
    return record(tmp_path_factory.mktemp("crashing"), have, "torch.ops.userops.crashes(weight)")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT])
def test_an_operator_that_crashes_is_named(crashing, number):
    assert player("--library", library(), crashing)[0] == 0
    env = {"USEROPS_CRASH": str(int(number))}
    code, said = player("--library", library(), "--step-through", crashing, env=env)
    assert code == 3 and f"userops::crashes: the operator crashed with {number.name}" in said, said
    assert "identical" not in said and said.count("crashed") == 1, said


def test_an_operator_that_crashes_is_named_by_finitude_replay(crashing, tmp_path):
    env = {"USEROPS_CRASH": str(int(signal.SIGSEGV))}
    done = helpers.finitude(tmp_path, "replay", crashing, "--library", library(), env=env, cold=True)
    assert done.code == 3 and "userops::crashes: the operator crashed with SIGSEGV" in done.err, done.text()


def test_what_a_capsule_says_loads_nothing(compiled, tmp_path):
    copy = tmp_path / "capsule"
    shutil.copytree(compiled, copy)
    about = json.loads((copy / "capsule.json").read_text())
    about.update(library=library(), libraries=[library()], command=["train.py", "--library", library()])
    about.setdefault("environment", {})["LD_PRELOAD"] = library()
    helpers.put_about(copy, about)
    code, said = player("--allow", "userops", copy)
    assert code == 4 and "not registered here" in said, said


def test_operators_that_a_python_module_registers(tmp_path):
    (tmp_path / "my_operators.py").write_text(PYTHON_OPERATORS)
    path = record(tmp_path, "import my_operators", "torch.ops.pyops.half(weight).exp()")
    done = helpers.finitude(tmp_path, "replay", path, "--import", "my_operators")
    assert done.code == 0 and "identical" in done.out, done.text()
    assert helpers.finitude(tmp_path, "diff", path, path, "--import=my_operators").code == 0
    done = helpers.finitude(tmp_path, "replay", path)
    assert done.code == 4 and "pyops::half" in done.err and "--import MODULE" in done.err, done.text()
    (tmp_path / "broken.py").write_text("raise RuntimeError('not this one')")
    for module, code, reason in (
        ("broken", 3, "not this one"),
        ("no_such_module", 3, "no_such_module"),
        ("../x", 2, "name of a module"),
    ):
        done = helpers.finitude(tmp_path, "replay", path, "--import", module)
        assert done.code == code and reason in done.err, done.text()


def test_script_with_imported_operator_loads_the_named_module(tmp_path):
    (tmp_path / "my_operators.py").write_text(PYTHON_OPERATORS.replace("* 0.5", "/ 0"))
    path = record(tmp_path, "import my_operators", "torch.ops.pyops.half(weight)")
    done = helpers.finitude(tmp_path, "replay", path, "--import", "my_operators", "--script", "birth.py")
    assert done.code == 0, done.text()
    text = (tmp_path / "birth.py").read_text()
    assert "torch.ops.pyops.half.default(" in text and "import my_operators" in text, text
    alone = subprocess.run(
        [*helpers.warm_python(), "birth.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert alone.returncode == 0, alone.stdout + alone.stderr


def test_script_with_library_operator_loads_its_file(compiled, tmp_path):
    path = record(tmp_path, f"torch.ops.load_library({library()!r})", "torch.ops.userops.soft(weight, 1e30)")
    script = tmp_path / "birth.py"
    code, said = player("--library", library(), "--script", script, path)
    assert code == 0, said
    text = script.read_text()
    assert "torch.ops.userops.soft.default(" in text and "torch.ops.load_library(" in text and library() in text, text
    alone = subprocess.run(
        [*helpers.warm_python(), str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert alone.returncode == 0, alone.stdout + alone.stderr
