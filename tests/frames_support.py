"""Builds the frame machinery as a bare extension module, and runs loops against it with one step vetoed."""

import os
import runpy
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from shutil import which

import pytest

import built_once

ROOT = Path(__file__).resolve().parent.parent
PARTS = [
    *(
        f"src/rewind/frames_{part}.cpp"
        for part in ("values", "stand_ins", "layouts", "iterators", "trial", "handed", "memory", "python")
    ),
    "src/pyhost/frames_code.cpp",
    "src/pyhost/user_stack.cpp",
    "tests/native/frames_test_module.cpp",
]

# What an optimizer's step looks like from the user's side: a Python function outside the user's code.
LIBRARY = """
class Stepper:
    def __init__(self, native, snapshot, veto, state):
        self.native, self.snapshot, self.veto, self.state = native, snapshot, veto, state

    def __call__(self):
        return self.step()

    def step(self):
        return self._inner()

    def _inner(self):
        self.native.hook(self.snapshot, self.veto, self.state)


def no_grad(function):
    def decorate_context(*args, **kwargs):
        with Quiet():
            return function(*args, **kwargs)
    return decorate_context


class Quiet:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


class Module:
    def _call_impl(self, *args):
        def inner():
            return self.forward(*args)
        return inner()

    __call__ = _call_impl


def drive(function, values):
    results = []
    for value in values:
        results.append(function(value))
    return results
"""


class Tensor:
    """Stands in for torch.Tensor; `leaf` ones may be kept alive."""

    def __init__(self, value=0, leaf=False):
        self.value, self.leaf = value, leaf


class Loader:
    """An iterator whose position its owner sets back."""

    def __init__(self, values):
        self.values, self.at = list(values), 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]


def _compile(folder):
    compiler = os.environ.get("CXX") or which("g++-12") or which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    launcher = [which("ccache")] if which("ccache") else []
    flags = [
        "-std=c++20",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        f"-I{ROOT / 'src'}",
        f"-I{ROOT / 'include'}",
        f"-I{sysconfig.get_paths()['include']}",
    ]

    def compiled(part):
        out = folder / (Path(part).stem + ".o")
        subprocess.run([*launcher, compiler, *flags, "-c", str(ROOT / part), "-o", str(out)], check=True)
        return str(out)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, PARTS))
    subprocess.run([compiler, "-shared", *objects, "-o", str(folder / _MODULE)], check=True)
    (folder / "library").mkdir()
    (folder / _SOURCE).write_text(LIBRARY)


_MODULE, _SOURCE = "frames_test_module.so", "library/stepper.py"


@lru_cache
def build():
    """(the extension module, the names of LIBRARY, the folder they lie in)."""
    folder = built_once.made("frames", _compile)
    library = folder / _MODULE
    loader = ExtensionFileLoader("frames_test_module", str(library))
    native = module_from_spec(spec_from_loader("frames_test_module", loader))
    loader.exec_module(native)
    names = runpy.run_path(str(folder / _SOURCE))
    testers = [str(Path(sys.modules[name].__file__).parent) for name in ("pytest", "_pytest", "pluggy")]
    prefixes = (str(folder / "library"), sysconfig.get_paths()["stdlib"], *testers)
    native.init(prefixes, Tensor, (Loader,), (names["Module"]._call_impl.__code__,))
    return native, names, folder


@pytest.fixture(scope="session")
def built():
    return build()


@pytest.fixture(scope="session")
def native(built):
    return built[0]


class Run:
    """One run of a loop, vetoed at step number `veto` (-1: never)."""

    def __init__(self, built, loop, veto, direct):
        native, names, _ = built
        self.log, self.marks = [], []
        self.state = [0, self.marks, self.log, None]
        snapshot = native.make()
        step = partial(native.hook, snapshot, veto, self.state)
        if not direct:
            step = names["Stepper"](native, snapshot, veto, self.state).step
        self.result = loop(step, self.log)
        native.clear(snapshot)

    @property
    def restored(self):
        return self.state[3][0]

    @property
    def reason(self):
        return self.state[3][1]


def expect_rewound(clean, run, veto):
    assert run.restored, (veto, run.reason)
    again = clean.log[: clean.marks[veto]] + clean.log[clean.marks[veto - 1] :]
    assert run.log == again, veto
    assert run.result == clean.result, veto
