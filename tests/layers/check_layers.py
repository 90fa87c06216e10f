"""The rules that keep the tree readable, checked without compiling anything.

    python tests/layers/check_layers.py [ROOT]      prints one line per violation; exit code 1 if there is any

Each rule is a function from a Tree to violations; RULES lists them. To add a rule, write the function, add it to RULES,
and give tests/tools/test_layers.py a tree that breaks it.
"""

import ast
import dataclasses
import os
import pathlib
import re
import sys

# The folders of src/ in the order of the flow. A folder includes itself and what stands to its left.
LAYERS = (
    "base", "archive", "sense", "record", "store", "signal", "decide", "capture", "checkpoint", "observe", "replay", "compare", "locate", "explain", "show", "incident", "recorder", "cli",
    "pyhost", "gate", "rewind", "standby", "bindings",
)  # fmt: skip
# Of these, the folders in which every file may see torch and Python, whatever its name.
PYTHON_FOLDERS = {"pyhost", "gate", "rewind", "standby", "bindings"}
# The folders of python/finitude, likewise; its public modules stand above all of them.
PYTHON_LAYERS = (
    "base",
    "program",
    "effects",
    "report",
    "store",
    "rows",
    "export",
    "live",
    "capsules",
    "rerun",
    "alarms",
    "session",
    "selftest",
    "launch",
    "doctor",
    "agents",
    "cli",
)
PYTHON_GROUND = {"errors", "rules", "_native"}  # public or built, and below all folders
# Names for annotations: under `if TYPE_CHECKING:`, which is never so in a program, it may name classes of all folders.
PYTHON_TYPES = "base.types"
MAX_CIRCLE = 3  # C++ units that include each other, whichever folders they lie in
MAX_LINES = 450

# What a file name has to say before the file may include a header: the suffixes of its stem, or the folder is
# one of PYTHON_FOLDERS.
TORCH_HEADER = re.compile(r"^(ATen|c10|torch|caffe2)/")
PYTHON_HEADER = re.compile(r"^(Python\.h$|pybind11/|cpython/|frameobject\.h$|internal/pycore)")
CUDA_HEADER = re.compile(r"^(cuda|cub/|thrust/|nccl|cublas|cudnn|nvml|nvrtc)")
POSIX_HEADER = re.compile(
    r"^(sys/|unistd\.h$|fcntl\.h$|dirent\.h$|pthread\.h$|poll\.h$|dlfcn\.h$|sched\.h$|semaphore\.h$|spawn\.h$|link\.h$"
    r"|termios\.h$|pwd\.h$|netinet/|arpa/)"
)
SIMD_HEADER = re.compile(r"^(hwy/|arm_neon\.h$|arm_sve\.h$|x86intrin\.h$|[a-z]*mmintrin\.h$|immintrin\.h$)")
FAST_MATH = re.compile(
    r"-Ofast\b|-ff(ast|inite)-math|-ffinite-math-only|-funsafe-math|-fno-honor-(nans|infinities)|-fassociative-math"
    r"|-freciprocal-math|-use_fast_math|/fp:fast|fast-math|float_control\s*\(\s*precise\s*,\s*off"
)
# What only one header of pyhost/ does, for all others: who owns a reference, and what becomes of an exception.
OWNERS = {
    "pyhost/object_python.h": re.compile(
        r"\bPy_(X?INCREF|X?DECREF|IncRef|DecRef|CLEAR|X?SETREF|X?NewRef)\b|\b(inc|dec)_ref\s*\("
    ),
    "pyhost/saved_error_python.h": re.compile(r"\bPyErr_(Fetch|Restore|(Get|Set)RaisedException)\b"),
}
# Folders of build machines. Written in two parts so that this file passes its own check; samples use /srv/fits.
MACHINE_PATH = re.compile(r"(?<![\w.\-/:*}])/(ro" + r"ot|wo" + r"rk)(?![\w-])")
# A path of the tree in backticks. What a build or a run leaves behind (build/, finitude-runs/) is not one.
DOCUMENTED_PATH = re.compile(
    r"`((?:src|include|python|zoo|tests|examples|docs|tools|cmake|requirements|\.ci)/[\w./*-]*)`"
)

SOURCE_SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".inc"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {
    ".py", ".pyi", ".cmake", ".txt", ".sh", ".toml", ".json", ".md", ".html", ".css", ".js", ".yml", ".yaml", "",
}  # fmt: skip
ASCII_SUFFIXES = SOURCE_SUFFIXES | {".py", ".pyi", ".cmake", ".sh", ".toml", ".html", ".css", ".js"}
SKIPPED_FOLDERS = {
    ".git", ".venv", "build", "__pycache__", ".pytest_cache", ".hypothesis", "finitude-runs", "node_modules",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class File:
    path: pathlib.PurePosixPath  # relative to the root
    data: bytes

    @property
    def text(self):
        return self.data.decode("utf-8", errors="replace")

    @property
    def tags(self):
        """What the name says the file depends on or is: ring_posix_test.cpp -> {"posix", "test"}."""
        return set(self.path.name.split(".")[0].replace("-inl", "").split("_")[1:])

    @property
    def is_source(self):
        return self.path.suffix in SOURCE_SUFFIXES

    @property
    def layer(self):
        """The folder of src/ it lies in, "contract" for include/finitude, else None."""
        parts = self.path.parts
        if parts[0] == "include":
            return "contract"
        return parts[1] if parts[0] == "src" and len(parts) > 2 else None

    def includes(self):
        """(line number, header) of each #include."""
        for number, line in enumerate(self.text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if match:
                yield number, match.group(1)


class Tree:
    """The text files below a root, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = []
        for folder, names, file_names in os.walk(root):
            names[:] = sorted(name for name in names if name not in SKIPPED_FOLDERS)
            for file_name in sorted(file_names):
                path = pathlib.Path(folder, file_name)
                if file_name in SKIPPED_FOLDERS:  # .git of a worktree
                    continue
                if path.suffix in TEXT_SUFFIXES and not path.is_symlink() and file_name != ".git":  # of a worktree
                    relative = pathlib.PurePosixPath(path.relative_to(root).as_posix())
                    data = path.read_bytes()
                    if not data.startswith(b"\x7fELF"):  # a program that was built and put where it is looked for
                        self.files.append(File(relative, data))

    def sources(self, *folders):
        return [file for file in self.files if file.is_source and file.path.parts[0] in folders]


def layer_order(tree):
    """A folder includes only folders to its left; contracts include only contracts; every folder has a place."""
    for file in tree.sources("src", "include"):
        if file.layer != "contract" and file.layer not in LAYERS:
            yield file.path, 0, f"src/{file.path.parts[1]} has no place in the layer order"
            continue
        for line, header in file.includes():
            target = header.split("/")[0]
            if target not in LAYERS or "/" not in header:
                continue
            if file.layer == "contract":
                yield file.path, line, f"a contract includes {header}; include/ knows nothing of src/"
            elif LAYERS.index(target) > LAYERS.index(file.layer):
                yield file.path, line, f"{file.layer} includes {header}, which stands to its right"


def _imports(file, module):
    """(line, module relative to python/finitude that is imported) of a module there, where it stands and inside
    functions."""
    package, tree = module.split(".")[:-1], ast.parse(file.data)
    if module == PYTHON_TYPES:
        tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            for name in node.names:
                yield node.lineno, ".".join(filter(None, [*base, name.name]))


def python_order(tree):
    """A folder of python/finitude imports from itself and from what stands to its left, and no two of its files each
    other."""
    root = pathlib.PurePosixPath("python/finitude")
    files = {
        ".".join(f.path.relative_to(root).with_suffix("").parts): f
        for f in tree.files
        if f.path.is_relative_to(root) and f.path.suffix == ".py"
    }
    edges = {}
    for module, file in files.items():
        folder, _, name = module.rpartition(".")
        if name in ("__init__", "__main__") or folder not in PYTHON_LAYERS:
            continue
        for line, target in _imports(file, module):
            there = target.split(".")[0]
            if there in PYTHON_LAYERS and PYTHON_LAYERS.index(there) <= PYTHON_LAYERS.index(folder):
                imported = target if target in files else target.rpartition(".")[0]  # a module, or a name in one
                edges.setdefault(module, {})[imported] = line
            elif there not in PYTHON_GROUND and target != "__version__":
                yield file.path, line, f"{folder} imports {there}, which does not stand to its left"
    reported = set()  # one line for a circle
    for module, targets in sorted(edges.items()):
        for target, line in targets.items():
            if module not in reported and module in (reached := _reached(edges, target)):
                reported |= {m for m in reached if module in _reached(edges, m)}
                yield files[module].path, line, f"imports {target}, which needs this file"


def _reached(edges, start):
    found, ahead = set(), [start]
    while ahead:
        for target in edges.get(ahead.pop(), {}):
            if target not in found:
                found.add(target)
                ahead.append(target)
    return found


def cpp_circles(tree):
    """At most MAX_CIRCLE C++ units need each other. A unit is a .cpp with the header of its name; *-inl.h is the body of
    the .cpp that includes it, and no unit."""
    units = {}
    for file in tree.sources("src"):
        if not {"test", "fuzz"} & file.tags and not file.path.stem.endswith("-inl"):
            units.setdefault(file.path.relative_to("src").with_suffix(""), []).append(file)
    edges = {}
    for unit, files in units.items():
        for file in files:
            for line, header in file.includes():
                target = pathlib.PurePosixPath(header).with_suffix("")
                if target in units and target != unit:
                    edges.setdefault(unit, {}).setdefault(target, (file.path, line))
    reported = set()  # one line for a circle
    for unit, targets in sorted(edges.items()):
        ahead = _reached(edges, unit)
        if unit in reported or unit not in ahead:
            continue
        circle = {other for other in ahead if unit in _reached(edges, other)}
        reported |= circle
        if len(circle) > MAX_CIRCLE:
            path, line = next(where for target, where in sorted(targets.items()) if target in circle)
            names = ", ".join(map(str, sorted(circle)))
            yield path, line, f"{len(circle)} units need each other, at most {MAX_CIRCLE} may: {names}"


def relative_includes(tree):
    """Headers are named from src/ or include/, never by a path relative to the file."""
    for file in tree.sources("src", "include"):
        for line, header in file.includes():
            if header.startswith("."):
                yield file.path, line, f"relative include {header}"


def named_dependencies(tree):
    """What a file depends on stands in its name: _torch, _python, _cuda, _posix; or it lies in one of PYTHON_FOLDERS."""
    for file in tree.sources("src", "include"):
        bound = file.layer in PYTHON_FOLDERS
        for line, header in file.includes():
            if TORCH_HEADER.match(header) and not (bound or "torch" in file.tags):
                yield file.path, line, f"{header} in a file that is not named *_torch"
            if PYTHON_HEADER.match(header) and not (bound or "python" in file.tags):
                yield file.path, line, f"{header} in a file that is not named *_python"
            if CUDA_HEADER.match(header) and "cuda" not in file.tags:
                yield file.path, line, f"{header} in a file that is not named *_cuda"
            if POSIX_HEADER.match(header) and not ({"posix", "test"} & file.tags):
                yield file.path, line, f"{header} in a file that is not named *_posix"
            if SIMD_HEADER.match(header) and file.layer != "sense":
                yield file.path, line, f"{header} outside src/sense"
            if header.startswith("pybind11/") and file.layer != "bindings" and file.path.parts[0] == "src":
                yield file.path, line, f"{header} outside src/bindings"


def indirect_dependencies(tree):
    """Including a header that is named for torch, Python or CUDA is the same as including theirs."""
    for file in tree.sources("src", "include"):
        for line, header in file.includes():
            if header.split("/")[0] not in LAYERS or file.layer in PYTHON_FOLDERS:
                continue
            target = File(pathlib.PurePosixPath(header), b"")
            for tag in sorted({"torch", "python", "cuda"} & (target.tags - file.tags)):
                yield file.path, line, f"{header} in a file that is not named *_{tag}"


def owned_references(tree):
    """References to Python objects are counted, and exceptions saved, in one header each."""
    for file in tree.sources("src", "include", "tests"):
        for line, text in enumerate(file.text.splitlines(), 1):
            for owner, pattern in OWNERS.items():
                match = pattern.search(text.split("//")[0])
                if match and file.path != pathlib.PurePosixPath("src", owner):
                    yield file.path, line, f"{match.group(0)} outside {owner}"


def one_torch_extension(tree):
    """torch/extension.h costs 25 seconds of compilation: at most one file pays it, and torch/torch.h is never
    needed."""
    users = []
    for file in tree.sources("src", "include", "cmake"):
        for line, header in file.includes():
            if header == "torch/extension.h":
                users.append((file.path, line))
            if header == "torch/torch.h":
                yield file.path, line, "torch/torch.h; include the narrowest header instead"
    for path, line in users[1:]:
        yield path, line, f"a second file with torch/extension.h, besides {users[0][0]}"


def honest_math(tree):
    """No flag or pragma lets the compiler assume that NaN and Inf do not exist."""
    build_names = {"CMakeLists.txt", "CMakePresets.json", "Makefile", "pyproject.toml"}
    for file in tree.files:
        is_build = file.path.name in build_names or file.path.suffix in (".cmake", ".sh")
        if not is_build and not (file.is_source and file.path.parts[0] in ("src", "include")):
            continue
        for line, text in enumerate(file.text.splitlines(), 1):
            code = re.sub(r"message\(.*|//.*|(^|\s)#(?!\s*pragma).*", "", text)  # may speak of it
            if FAST_MATH.search(code):
                yield file.path, line, "a fast-math flag; the checks could not see a NaN"


def resizable_storages(tree):
    """Tensor.numpy() forbids to resize the storage, which FSDP2 does with that of the program: only copies have it."""
    for file in tree.files:
        if file.path.suffix != ".py" or file.path.parts[0] != "python" or file.path.name == "placing.py":
            continue  # that makes the tensors of a replay
        for line, text in enumerate(file.text.splitlines(), 1):
            if ".numpy()" in text.split("#")[0].replace(".clone().numpy()", ""):
                yield file.path, line, ".numpy() of what is no copy"


def file_size(tree):
    """Small files: one idea each."""
    for file in tree.files:
        if file.path.suffix not in SOURCE_SUFFIXES | {".py"}:
            continue
        lines = len(file.text.splitlines())
        if lines > MAX_LINES:
            yield file.path, lines, f"{lines} lines; the limit is {MAX_LINES}"


def ascii_sources(tree):
    """Sources are ASCII; text for people that needs more is written with escapes."""
    for file in tree.files:
        if file.path.suffix not in ASCII_SUFFIXES and file.path.name not in ("Makefile", "CMakeLists.txt"):
            continue
        for line, text in enumerate(file.data.splitlines(), 1):
            if not text.isascii():
                yield file.path, line, "not ASCII"


def no_machine_paths(tree):
    """Nothing names a folder of somebody's machine."""
    for file in tree.files:
        for line, text in enumerate(file.text.splitlines(), 1):
            match = MACHINE_PATH.search(text)
            if match:
                yield file.path, line, f"the machine path {match.group(0)}"


def tests_beside_code(tree):
    """A C++ test lies in src/, where the build finds it, and beside what it tests. Those of torch code are in Python;
    only what C++ programs link (src/recorder) is tested in C++ with torch, and through the public headers, as such a
    program would."""
    for file in tree.files:
        if file.path.suffix != ".cpp" or not file.path.stem.endswith("_test"):
            continue
        if file.path.parts[0] != "src":
            yield file.path, 0, "a C++ test outside src/ is in no target"
        elif (
            file.layer in PYTHON_FOLDERS or "python" in file.tags or ("torch" in file.tags and file.layer != "recorder")
        ):
            yield file.path, 0, "a C++ test that needs torch is in no target; test it from Python"
        elif file.layer == "recorder":
            for line, header in file.includes():
                if header.split("/")[0] in LAYERS and not header.startswith("recorder/testing"):
                    yield (
                        file.path,
                        line,
                        f"a test of what C++ programs link includes {header}; they have the public headers alone",
                    )


def named_paths(tree):
    """A page names only files and folders that are there. `src/explain/rules/<name>.cpp` is a pattern, not a name."""
    for file in tree.files:
        if file.path.suffix != ".md":
            continue
        for line, text in enumerate(file.text.splitlines(), 1):
            for name in DOCUMENTED_PATH.findall(text):
                if not any(tree.root.glob(name)):
                    yield file.path, line, f"{name} is not there"


RULES = (
    layer_order,
    python_order,
    cpp_circles,
    relative_includes,
    named_dependencies,
    indirect_dependencies,
    owned_references,
    one_torch_extension,
    honest_math,
    resizable_storages,
    file_size,
    ascii_sources,
    no_machine_paths,
    tests_beside_code,
    named_paths,
)


def violations(root):
    """One line per violation, in the order of RULES."""
    tree = Tree(root)
    return [f"{path}:{line}: {message} [{rule.__name__}]" for rule in RULES for path, line, message in rule(tree)]


if __name__ == "__main__":
    found = violations(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    print("\n".join(found) or "the tree follows the rules")
    sys.exit(1 if found else 0)
