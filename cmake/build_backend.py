"""The PEP 517 build backend: scikit-build-core, with the torch to build against found first.

pip and uv build in an environment of their own, in which the installed torch is not importable. The extension has to be
compiled against that very torch, so this module looks for it in the environment that the package goes into. It also
checks for the compiler and the headers, so that what is missing is reported in one line before anything compiles."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig

from scikit_build_core import build as _build

get_requires_for_build_sdist = _build.get_requires_for_build_sdist
build_sdist = _build.build_sdist
prepare_metadata_for_build_wheel = _build.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _build.prepare_metadata_for_build_editable
get_requires_for_build_wheel = _build.get_requires_for_build_wheel
get_requires_for_build_editable = _build.get_requires_for_build_editable

APT_PACKAGES = "g++ libhwy-dev nlohmann-json3-dev libcli11-dev"
HEADERS = ("hwy/highway.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "Python.h")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_wheel(wheel_directory, _checked(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_editable(wheel_directory, _checked(config_settings), metadata_directory)


def _checked(config_settings):
    """The settings with the torch to build against. Ends with one line where something is missing."""
    settings = dict(config_settings or {})
    if "cmake.define.FINITUDE_TORCH_DIR" not in settings:
        torch = _find_torch()
        if torch is None:
            sys.exit(
                "finitude is compiled against the torch that it will run with, and this environment has none: "
                "pip install torch, then repeat this command"
                " (with `python -m build` or another environment: pip install --no-build-isolation .)"
            )
        settings["cmake.define.FINITUDE_TORCH_DIR"] = str(torch)
    problem = _missing_tool()
    if problem:
        sys.exit(problem)
    return settings


def _find_torch():
    """The folder of the installed torch, or None. It is not imported."""
    folders = [pathlib.Path(entry) for entry in sys.path if entry]
    # The environment that pip installs into: under build isolation its site-packages are not on sys.path.
    folders += [pathlib.Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active:
        variables = {"base": active, "platbase": active}
        folders.append(pathlib.Path(sysconfig.get_path("purelib", vars=variables)))
    for folder in folders:
        if (folder / "torch/version.py").is_file():
            return folder / "torch"
    return None


def _missing_tool():
    """One line that names what to install, or None."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    advice = f"On Debian and Ubuntu: apt-get install {APT_PACKAGES}"
    if shutil.which(compiler[0]) is None:
        return f"finitude needs a C++20 compiler, and there is no {compiler[0]}. {advice}"
    if os.environ.get("CMAKE_PREFIX_PATH") or os.environ.get("CMAKE_ARGS"):
        return None  # the headers lie where CMake was told to look
    include = ["-I", sysconfig.get_path("include")]
    missing = [name for name in HEADERS if not _has_header(compiler + include, name)]
    if not missing:
        return None
    packages = APT_PACKAGES + (" python3-dev" if "Python.h" in missing else "")
    return (
        f"finitude needs the header {', '.join(missing)}, which {compiler[0]} does not find. "
        f"On Debian and Ubuntu: apt-get install {packages}"
    )


def _has_header(compiler, name):
    command = [*compiler, "-x", "c++", "-std=c++20", "-E", "-o", os.devnull, "-"]
    probe = f"#if !__has_include(<{name}>)\n#error missing\n#endif\n"
    return subprocess.run(command, input=probe, text=True, capture_output=True).returncode == 0
