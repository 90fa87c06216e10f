"""What type checkers know of the package: the stub of the extension module, py.typed, the keywords of the API, and the rule
that what crosses a module is annotated (tools/types_check.py)."""

import ast
import inspect
import pathlib
import re
import sys

import pytest
import torch

import finitude
from finitude import _native
from finitude.base import config

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import native_stub
import types_check

STUB = ast.parse(native_stub.STUB.read_text())


def public(names):
    return {name for name in names if not name.startswith("_") or name in ("__init__", "__eq__")}


def in_stub(body):
    return {
        node.target.id if isinstance(node, ast.AnnAssign) else node.name
        for node in body
        if hasattr(node, "name") or hasattr(node, "target")
    }


def test_the_stub_names_what_the_module_has():
    assert public(in_stub(STUB.body)) == public(vars(_native)) - {"__init__", "__eq__"}


@pytest.mark.parametrize("node", [n for n in STUB.body if isinstance(n, ast.ClassDef)], ids=lambda node: node.name)
def test_the_stub_names_what_a_class_has(node):
    kind = getattr(_native, node.name)
    can_be_made = "(self: " in (kind.__init__.__doc__ or "")
    assert public(in_stub(node.body)) == public(vars(kind)) - (set() if can_be_made else {"__init__"})


def test_the_stub_has_as_many_arguments():
    """Of what pybind11 writes down."""
    counts = {}
    for name, function in vars(_native).items():
        if found := re.match(rf"{name}(\()", getattr(function, "__doc__", None) or ""):
            words = native_stub.split(native_stub.balanced(function.__doc__, found.start(1)))
            counts[name] = sum(word.strip(": ") != "*" for word in words)  # "*" is before those that have to be named
    given = {n.name: n.args for n in STUB.body if isinstance(n, ast.FunctionDef)}
    stub = {name: len(a.posonlyargs + a.args + a.kwonlyargs) for name, a in given.items()}
    assert len(counts) > 100 and counts == {name: stub[name] for name in counts}


def test_the_stub_is_as_it_is_generated():
    pinned = re.search(r"^torch==(\S+)", (ROOT / "requirements/demo.txt").read_text(), re.M)[1]
    if torch.__version__.partition("+")[0] != pinned:
        pytest.skip(f"the stub is generated with torch {pinned}, whose pybind11 writes types down in its way")
    assert native_stub.stub(_native) == native_stub.STUB.read_text()


def test_type_checkers_find_types_of_installed_package():
    folder = pathlib.Path(finitude.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_native.pyi").exists()


def test_watch_takes_the_options_of_the_command_line():
    options = [f.name for f in config.OPTIONS]
    given = [p for p in inspect.signature(finitude.watch).parameters.values() if p.kind is p.KEYWORD_ONLY]
    in_code = "tensors"  # no command line can name one
    assert sorted(p.name for p in given) == sorted([*options, in_code])
    assert all(p.default is None for p in given)
    types = ast.parse((ROOT / "python/finitude/base/types.py").read_text())
    of_others = next(n for n in ast.walk(types) if isinstance(n, ast.ClassDef) and n.name == "WatchOptions")
    assert in_stub(n for n in of_others.body if isinstance(n, ast.AnnAssign)) == {*options, in_code}


def test_docstring_of_watch_lists_each_keyword_and_default():
    text = inspect.getdoc(finitude.watch)
    for field in config.OPTIONS:
        about = re.search(rf"^    {field.name}: .*(?:\n     .*)*", text, re.M)
        assert about and (str(field.default) in about[0] or not field.default), field.name


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: finitude.watch(on_alram="skip"),
            "watch() got an unexpected keyword argument 'on_alram'. Did you mean 'on_alarm'?",
        ),
        (
            lambda: finitude.watch(None, None, levels="tape"),
            "unexpected keyword argument 'levels'. Did you mean 'level'?",
        ),
        (lambda: finitude.watch(qqq=1), "unexpected keyword argument 'qqq'; it takes model, optimizer, on_alarm"),
        (
            lambda: finitude.allow(modul="a", reason="b"),
            "allow() got an unexpected keyword argument 'modul'. Did you mean 'module'?",
        ),
        (lambda: finitude.watch(None, None, "skip"), "takes from 0 to 2 positional arguments"),
    ],
    ids=["transposed", "plural", "unknown", "allow", "positional"],
)
def test_wrong_keyword_raises_type_error_naming_right_one(call, message):
    with pytest.raises(TypeError) as e:
        call()
    assert message in str(e.value)


def test_what_another_module_uses_has_to_be_annotated(tmp_path):
    folder = tmp_path / "python/finitude/base"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(
        "def used(x): pass\ndef typed(x: int, *y: str) -> None: pass\ndef unused(x): pass\n"
        "class Of:\n    def __init__(self, x): pass\n    def called(self): pass\n    def _inner(self): pass\n"
    )
    (folder / "b.py").write_text("from . import a\nfrom .a import Of, typed\na.used(1)\nOf(1).called()\n")
    found = {f.name: f.lacks for f in types_check.crossing(tmp_path)}
    assert found == {"used": ["x", "return"], "typed": [], "Of.__init__": ["x"], "Of.called": ["return"]}
