"""The tree follows its own rules (tests/layers/check_layers.py), and each rule reports a tree that breaks it."""

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tests/layers/check_layers.py")
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)


def lines(count):
    return "int x;\n" * count


# rule, files of a tree that breaks it once, the file that is reported
BROKEN = [
    ("layer_order", {"src/sense/a.h": '#include "explain/rule.h"'}, "src/sense/a.h:1"),
    ("layer_order", {"src/util/a.h": ""}, "src/util/a.h:0"),
    ("layer_order", {"include/finitude/a.h": '\n#include "base/status.h"'}, "include/finitude/a.h:2"),
    (
        "python_order",
        {"python/finitude/program/a.py": "def f():\n    from ..report import b\n"},
        "python/finitude/program/a.py:2",
    ),
    ("python_order", {"python/finitude/program/a.py": "from .. import api\n"}, "python/finitude/program/a.py:1"),
    (
        "python_order",
        {
            "python/finitude/session/a.py": "from .b import x\n",
            "python/finitude/session/b.py": "x = 1\n",
            "python/finitude/session/c.py": "from . import d\n",
            "python/finitude/session/d.py": "def f():\n    from .c import y\n",
        },
        "python/finitude/session/c.py:1",
    ),
    (
        "python_order",
        {"python/finitude/base/types.py": "from ..program import a\nif TYPE_CHECKING:\n    from ..program import b\n"},
        "python/finitude/base/types.py:1",
    ),
    (
        "python_order",
        {"python/finitude/program/a.py": "if TYPE_CHECKING:\n    from ..report import b\n"},
        "python/finitude/program/a.py:2",
    ),
    ("layer_order", {"src/pyhost/a.h": '#include "gate/state.h"'}, "src/pyhost/a.h:1"),
    ("layer_order", {"src/gate/a.cpp": '\n#include "rewind/b.h"'}, "src/gate/a.cpp:2"),
    ("layer_order", {"src/gate/a.cpp": '#include "standby/b.h"'}, "src/gate/a.cpp:1"),
    ("layer_order", {"src/rewind/a.h": '#include "standby/b.h"'}, "src/rewind/a.h:1"),
    ("layer_order", {"src/standby/a.cpp": '#include "bindings/b.h"'}, "src/standby/a.cpp:1"),
    (
        "cpp_circles",
        {
            "src/gate/a.h": "",
            "src/gate/a.cpp": '#include "gate/a.h"\n#include "gate/b.h"',
            "src/gate/b.h": '#include "gate/c.h"',
            "src/gate/c.h": "",
            "src/gate/c.cpp": '#include "gate/d.h"',
            "src/gate/d.h": '#include "gate/a.h"',
            "src/gate/e.cpp": '#include "gate/a.h"',
        },
        "src/gate/a.cpp:2",
    ),
    ("relative_includes", {"src/sense/a.h": '#include "../base/b.h"'}, "src/sense/a.h:1"),
    ("named_dependencies", {"src/show/a.cpp": "#include <ATen/core/Tensor.h>"}, "src/show/a.cpp:1"),
    ("named_dependencies", {"src/show/a.cpp": "#include <c10/util/Half.h>"}, "src/show/a.cpp:1"),
    ("named_dependencies", {"src/show/a_torch.cpp": "#include <Python.h>"}, "src/show/a_torch.cpp:1"),
    ("named_dependencies", {"src/sense/a.cpp": "#include <cuda_runtime.h>"}, "src/sense/a.cpp:1"),
    ("named_dependencies", {"src/bindings/a.cpp": "#include <cuda_runtime.h>"}, "src/bindings/a.cpp:1"),
    ("named_dependencies", {"src/record/a.cpp": "#include <sys/mman.h>"}, "src/record/a.cpp:1"),
    ("named_dependencies", {"src/record/a.cpp": "#include <unistd.h>"}, "src/record/a.cpp:1"),
    ("named_dependencies", {"src/record/a.cpp": "#  include <immintrin.h>"}, "src/record/a.cpp:1"),
    ("named_dependencies", {"src/record/a.cpp": "#include <hwy/highway.h>"}, "src/record/a.cpp:1"),
    ("named_dependencies", {"src/gate/a.cpp": "#include <pybind11/pybind11.h>"}, "src/gate/a.cpp:1"),
    ("indirect_dependencies", {"src/show/a.cpp": '#include "observe/b_torch.h"'}, "src/show/a.cpp:1"),
    ("owned_references", {"src/gate/a.cpp": "int x;\n  Py_DECREF(r);"}, "src/gate/a.cpp:2"),
    ("owned_references", {"src/rewind/a.h": "Py_XSETREF(here, Py_TYPE(it));"}, "src/rewind/a.h:1"),
    ("owned_references", {"src/bindings/a.cpp": "decide = function.inc_ref().ptr();"}, "src/bindings/a.cpp:1"),
    (
        "owned_references",
        {"src/pyhost/saved_error_python.h": "return Py_NewRef(value);"},
        "src/pyhost/saved_error_python.h:1",
    ),
    ("owned_references", {"src/pyhost/object_python.h": "PyErr_Fetch(&t, &v, &b);"}, "src/pyhost/object_python.h:1"),
    (
        "one_torch_extension",
        {
            "src/bindings/a.cpp": "#include <torch/extension.h>",
            "src/bindings/b.cpp": "#include <torch/extension.h>",
        },
        "src/bindings/b.cpp:1",
    ),
    ("one_torch_extension", {"src/bindings/a.cpp": "#include <torch/torch.h>"}, "src/bindings/a.cpp:1"),
    ("honest_math", {"CMakeLists.txt": "add_compile_options(-O3 -ffast-math)"}, "CMakeLists.txt:1"),
    ("honest_math", {"cmake/a.cmake": 'set(CMAKE_CXX_FLAGS "-Ofast")'}, "cmake/a.cmake:1"),
    ("honest_math", {"CMakePresets.json": '{"CMAKE_CXX_FLAGS": "-ffinite-math-only"}'}, "CMakePresets.json:1"),
    ("honest_math", {"src/sense/a.cpp": '#pragma GCC optimize("fast-math")'}, "src/sense/a.cpp:1"),
    ("resizable_storages", {"python/finitude/a.py": "x = t.cpu().numpy()"}, "python/finitude/a.py:1"),
    ("file_size", {"src/sense/a.cpp": lines(451)}, "src/sense/a.cpp:451"),
    ("file_size", {"python/finitude/a.py": lines(451)}, "python/finitude/a.py:451"),
    ("file_size", {"tests/test_a.py": lines(451)}, "tests/test_a.py:451"),
    ("ascii_sources", {"src/sense/a.cpp": "// 3 \u00b5s"}, "src/sense/a.cpp:1"),
    ("ascii_sources", {"python/finitude/a.py": "x = 1\nname = '\u2192'"}, "python/finitude/a.py:2"),
    ("no_machine_paths", {"docs/a.md": "see /ro" + "ot/x/model.py"}, "docs/a.md:1"),
    ("no_machine_paths", {"examples/a.py": "open('/wo" + "rk/x')"}, "examples/a.py:1"),
    ("tests_beside_code", {"tests/a_test.cpp": ""}, "tests/a_test.cpp:0"),
    ("tests_beside_code", {"src/observe/a_torch_test.cpp": ""}, "src/observe/a_torch_test.cpp:0"),
    ("tests_beside_code", {"src/bindings/a_test.cpp": ""}, "src/bindings/a_test.cpp:0"),
    (
        "tests_beside_code",
        {"src/recorder/a_torch_test.cpp": '#include "finitude/recorder.h"\n#include "recorder/engine_torch.h"'},
        "src/recorder/a_torch_test.cpp:2",
    ),
    ("named_paths", {"HACKING.md": "\n`src/gone/*.cpp`"}, "HACKING.md:2"),
]

# The nearest thing to each violation that is allowed.
FINE = {
    "src/explain/rule.h": '#include "finitude/health.h"\n#include "explain/finding.h"\n#include <base64.h>',
    "src/sense/kernel-inl.h": '#include <hwy/highway.h>\n#include "sense/kernel.h"',
    "src/sense/kernel.h": "",
    "src/sense/kernel.cpp": '#include "sense/kernel-inl.h"\n#include "sense/kernel.h"',
    "src/gate/a.h": '#include <Python.h>\n#include <ATen/core/Tensor.h>\n#include "pyhost/b.h"\n#include "gate/b.h"',
    "src/gate/b.h": '#include "gate/c.h"',
    "src/gate/c.h": "",
    "src/gate/c.cpp": '#include "gate/a.h"',
    "src/pyhost/object_python.h": "Py_XDECREF(reference_);",
    "src/pyhost/saved_error_python.h": "PyErr_Restore(type, value, trace);",
    "src/gate/d.cpp": "Py_RETURN_NONE;  // not Py_NewRef(Py_None)",
    "src/standby/a.h": '#include "rewind/b.h"\n#include "gate/b.h"',
    "src/sense/a_cuda.cpp": "#include <cuda_runtime.h>",
    "src/record/ring_posix.cpp": '#include <sys/mman.h>\n#include "finitude/status.h"',
    "src/record/ring_test.cpp": "#include <unistd.h>",
    "src/observe/gate_torch.cpp": '#include <ATen/core/Tensor.h>\n#include "observe/step_torch.h"',
    "src/observe/stack_python.cpp": "#include <Python.h>",
    "src/bindings/module.cpp": '#include <torch/extension.h>\n#include "observe/step_torch.h"',
    "src/show/a.cpp": lines(450),
    "tests/test_a.py": lines(450),
    "src/recorder/a_torch_test.cpp": "#include <ATen/core/Tensor.h>\n#include "
    '"finitude/recorder.h"\n#include "recorder/testing_torch.h"',
    "include/finitude/a.h": '#include "finitude/status.h"',
    "python/finitude/session/a.py": "from .. import _native\nfrom ..errors import X\nfrom "
    "..program.b import y\nfrom . import c\nfrom ..program import b",
    "python/finitude/session/c.py": "import finitude",
    "python/finitude/program/b.py": "",
    "python/finitude/program/__main__.py": "from ..watch import a",
    "cmake/a.cmake": 'message(FATAL_ERROR "no -ffast-math")  # not -Ofast either\n',
    "docs/a.md": "\u2192 https://example.org/srv/fits/x and $HOME/work and frame/work/x",
    "HACKING.md": "`docs/a.md` `src/sense/` `src/*/a.cpp` `src/explain/rules/<name>.cpp` `build/core`",
}


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_this_tree_follows_the_rules():
    assert check_layers.violations(ROOT) == []


@pytest.mark.parametrize("rule, files, where", BROKEN)
def test_a_broken_tree_is_reported(tmp_path, rule, files, where):
    write(tmp_path, files)
    found = check_layers.violations(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(where + ": ") and found[0].endswith(f"[{rule}]")


def test_every_rule_has_a_broken_tree():
    assert {rule for rule, _, _ in BROKEN} == {rule.__name__ for rule in check_layers.RULES}


def test_what_is_allowed_is_not_reported(tmp_path):
    write(tmp_path, FINE)
    assert check_layers.violations(tmp_path) == []


def test_every_event_of_the_gate_has_a_listener():
    events = re.findall(r"\(\*(\w+)\)\(", (ROOT / "src/gate/listeners.h").read_text())
    connected = re.findall(r"^  l\.(\w+) = ", (ROOT / "src/bindings/listeners_torch.cpp").read_text(), re.MULTILINE)
    assert len(events) > 20 and sorted(events) == sorted(connected)


def test_every_cpp_test_is_in_a_target(tmp_path):
    """Asks CMake what it would compile: a test that no target takes would never run."""
    if not shutil.which("cmake") or not shutil.which("ninja"):
        pytest.skip("needs cmake and ninja")
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(tmp_path),
        "-G",
        "Ninja",
        "-DFINITUDE_TESTS=ON",
        "-DFINITUDE_TORCH=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    done = subprocess.run(configure, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    compiled = {pathlib.Path(command["file"]).resolve() for command in commands}
    tests = {path.resolve() for path in ROOT.glob("src/**/*_test.cpp")}
    assert tests, "no C++ test found"
    assert tests <= compiled
