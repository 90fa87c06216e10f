"""The PEP 517 build backend: scikit-build-core, with the torch to build against found first (torch_finder.py).

The extension has to be compiled against the very torch that it will run with. This module also checks for the compiler,
headers and libraries, so that what is missing is reported in one line before anything compiles."""

import ast
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import build_progress
import torch_finder
from scikit_build_core import build as _build

get_requires_for_build_sdist = _build.get_requires_for_build_sdist
build_sdist = _build.build_sdist
prepare_metadata_for_build_wheel = _build.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _build.prepare_metadata_for_build_editable
get_requires_for_build_wheel = _build.get_requires_for_build_wheel
get_requires_for_build_editable = _build.get_requires_for_build_editable

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ROOT / "build/headers"  # as long as the build folder, so that the next build compiles what changed alone
INSTALL = "On Debian and Ubuntu: apt-get install"
PACKAGES = {  # of Debian, by the header or library that is looked for
    "hwy/highway.h": "libhwy-dev",
    "nlohmann/json.hpp": "nlohmann-json3-dev",
    "CLI/CLI.hpp": "libcli11-dev",
    "zlib.h": "zlib1g-dev",
    "libz.a": "zlib1g-dev",
    "sqlite3.h": "libsqlite3-dev",
    "libsqlite3.a": "libsqlite3-dev",
    "Python.h": "python3-dev",
}
COME_WITHOUT = ("nlohmann/json.hpp", "Python.h")  # as a build requirement, or with Python
NAMED = {"libz.a": "FINITUDE_ZLIB_LIBRARY", "libsqlite3.a": "FINITUDE_SQLITE_LIBRARY"}  # for CMake
DEFINE = "cmake.define."
ELSEWHERE = {"CMAKE_TOOLCHAIN_FILE", "CMAKE_SYSROOT", "CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH"}
TORCH_DIR, JSON_INCLUDE = f"{DEFINE}FINITUDE_TORCH_DIR", f"{DEFINE}FINITUDE_JSON_INCLUDE"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _build_with(_build.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _build_with(_build.build_editable, wheel_directory, config_settings, metadata_directory)


def _build_with(build, wheel_directory, config_settings, metadata_directory):
    settings = checked(config_settings)
    torch = pathlib.Path(settings[TORCH_DIR])
    python = ".".join(map(str, sys.version_info[:2]))
    with build_progress.shown(f"compiling for Python {python} and torch {_version(torch)} in {torch.parent}"):
        return build(wheel_directory, settings, metadata_directory)


def checked(config_settings):
    """The settings with the torch to build against. Ends with one line where something is missing."""
    settings = dict(config_settings or {})
    if TORCH_DIR not in settings:
        torch = torch_finder.find()
        if torch is None:
            sys.exit(
                "finitude is compiled against the torch that it will run with, and this environment has none: "
                "pip install torch, then repeat this command (or name its folder: "
                f"--config-settings={TORCH_DIR}=/path/to/site-packages/torch)"
            )
        settings[TORCH_DIR] = str(torch)
    json = _json_of_the_build_environment()
    if json is not None:
        settings.setdefault(JSON_INCLUDE, str(json))
    problem = _unfit_torch(pathlib.Path(settings[TORCH_DIR])) or _missing_tool(settings)
    if problem:
        sys.exit(problem)
    return settings


def _version(torch):
    found = re.search(r"^__version__ *= *['\"]([^'\"]*)", (torch / "version.py").read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def _supported():
    """((major, minor), (major, minor)): the oldest and the newest torch, as the package itself has them."""
    text = (ROOT / "python/finitude/base/compat.py").read_text()
    return ast.literal_eval(re.search(r"^TORCH_RANGE = (.*)$", text, re.MULTILINE).group(1))


def _unfit_torch(torch):
    """One line that says why this torch cannot be built against, or None."""
    version = _version(torch)
    minor = tuple(map(int, re.findall(r"\d+", version)[:2]))
    oldest, newest = _supported()
    if not oldest <= minor <= newest:
        supported = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        return f"finitude supports torch {supported}, and {torch} is torch {version or 'of an unknown version'}"
    if not (torch / "include/pybind11/pybind11.h").is_file():
        return (
            f"finitude needs the headers that a wheel of torch has, and {torch} has none: pip install torch=={version}"
        )
    return None


def _json_of_the_build_environment():
    """The include folder of the package nlohmann-json, a build requirement; None without isolation, if it is not
    there. An isolated environment has another path each time, which every command of the compiler would name: what it
    has is copied."""
    for entry in filter(None, sys.path):
        folder = pathlib.Path(entry) / "nlohmann_json/include"
        if (folder / "nlohmann/json.hpp").is_file():
            return folder if (pathlib.Path(entry) / "torch").is_dir() else _kept(folder)
    return None


def _kept(folder):
    for source in folder.rglob("*.hpp"):
        target = KEPT / source.relative_to(folder)
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return KEPT


def _missing_tool(settings):
    """One line that names what to install, or None."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        others = _packages(name for name in PACKAGES if name not in COME_WITHOUT)
        return f"finitude needs a C++20 compiler, and there is no {compiler[0]}. {INSTALL} g++ {others}"
    if not _compiles([*compiler, "-E"], "#if __cplusplus < 202002L\n#error old\n#endif\n"):
        return f"finitude needs a compiler of C++20, g++ 12 or later; {compiler[0]} is none. {INSTALL} g++"
    defined = _defined(settings)
    if not ELSEWHERE.isdisjoint((*defined, *os.environ)):
        return None  # CMake will say what it does not find there
    includes = [sysconfig.get_path("include"), *(value for key, value in defined.items() if key.endswith("_INCLUDE"))]
    prefixes = _prefixes(defined)
    headers = [*compiler, "-E", *(w for folder in includes for w in ("-isystem", folder))]
    headers += [word for prefix in prefixes for word in ("-isystem", os.path.join(prefix, "include"))]
    linked = [*compiler, *(f"-L{prefix}/{folder}" for prefix in prefixes for folder in ("lib", "lib64"))]
    missing = []
    for name in PACKAGES:
        if name.endswith(".a"):
            is_there = NAMED.get(name) in defined or _compiles(linked, "int main() {}\n", f"-l:{name}")
        else:
            is_there = _compiles(headers, f"#if !__has_include(<{name}>)\n#error\n#endif\n")
        if not is_there:
            missing.append(name)
    if not missing:
        return None
    return f"finitude needs {', '.join(missing)}, which {compiler[0]} does not find. {INSTALL} {_packages(missing)}"


def _packages(names):
    return " ".join(dict.fromkeys(PACKAGES[name] for name in names))


def _defined(settings):
    """What CMake is given as -D, by name."""
    words = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    named = [word[2:].partition("=") for word in words if word.startswith("-D")]
    found = {name.partition(":")[0]: value for name, _, value in named}
    return found | {key.removeprefix(DEFINE): value for key, value in settings.items() if key.startswith(DEFINE)}


def _prefixes(defined):
    """Where CMake looks besides the system's folders: in conda's, say, which is named so, or by a folder of PATH."""
    named = f"{defined.get('CMAKE_PREFIX_PATH', '')};{defined.get('CMAKE_FIND_ROOT_PATH', '')}".split(";")
    named += os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep)
    programs = [os.path.split(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    named += [prefix for prefix, name in programs if name == "bin" and prefix not in ("/", "/usr", "/usr/local")]
    return list(dict.fromkeys(filter(None, named)))


def _compiles(command, text, *more):
    """Does it end well with that program? more: words that follow it."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        words = [*command, "-x", "c++", "-std=c++20", "-o", out, "-", *more]
        return subprocess.run(words, input=text, text=True, capture_output=True).returncode == 0
