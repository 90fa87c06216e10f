"""Builds the wheels: one for each Python, which holds an engine for each torch. Written to build/wheels/dist.

    python tools/wheels.py [PYTHON:TORCH ...]     default: the Python and the torch of .venv
    python tools/wheels.py --all                  every supported pair that can be had here

Each engine is compiled where its torch is installed: in .venv, else in an environment that torch_environments.py makes
(1.5 GB and, on 2 cores, 10 minutes for each pair). Those of one Python are put into one wheel; auditwheel gives it its
manylinux tag and refuses what a bare system lacks, torch's own libraries excepted."""

import argparse
import base64
import collections
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile

from torch_environments import PAIR, ROOT, Environment, Installed, find_python, run

sys.path.append(str(ROOT / "python"))
from finitude.base.compat import PYTHON_RANGE, TORCH_RANGE  # noqa: E402

HOME = ROOT / "build/wheels"
DIST = HOME / "dist"
BUILD_PACKAGES = ["scikit-build-core", "nlohmann-json", "scikit-learn", "tomli;python_version<'3.11'"]
NO_TORCH = {("3.10", "2.15")}  # no index has a wheel of torch for it: the last for Python 3.10 is 2.14
TORCH_LIBRARIES = ["libtorch*.so", "libc10*.so"]


def supported_pairs():
    """(Python, torch) of each, the newest first, as far as the Pythons are here."""
    pythons = [f"3.{minor}" for minor in range(PYTHON_RANGE[1][1], PYTHON_RANGE[0][1] - 1, -1)]
    torches = [f"2.{minor}" for minor in range(TORCH_RANGE[1][1], TORCH_RANGE[0][1] - 1, -1)]
    pairs = [(python, torch) for python in pythons if find_python(python) for torch in torches]
    return [pair for pair in pairs if pair not in NO_TORCH]


def environment_for(version, torch):
    here = Installed()
    fits = here.version == version and f"{here.torch}.".startswith(f"{torch}.")
    return here if fits else Environment(version, torch)


def build(environment, python):
    """The wheel with that engine alone, or None."""
    failed = environment.make(python, BUILD_PACKAGES)
    if failed:
        print(f"    failed: {failed}")
        return None
    out = HOME / f"raw/python{environment.version}-torch{environment.torch}"
    shutil.rmtree(out, ignore_errors=True)
    command = [environment.python, "-m", "pip", "wheel", "--disable-pip-version-check", "-v", "--no-build-isolation"]
    command += ["-Ccmake.define.FINITUDE_WEB=REQUIRED", "--no-deps", environment.build_folder, "--wheel-dir", out, "."]
    if not run("wheel", command, environment.log, env=environment.variables):
        return None
    return next(out.glob("*.whl"))


def merge(wheels, out):
    """Writes a wheel of the first, with the engines of the others."""
    entries = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if not entries or wheel == wheels[0] or "/_engines/" in info.filename:
                    entries.setdefault(info.filename, (info, archive.read(info)))
    record = next(name for name in entries if name.endswith(".dist-info/RECORD"))
    lines = [f"{record},,"]
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (info, data) in entries.items():
            if name == record:
                continue
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.insert(0, f"{name},sha256={digest},{len(data)}")
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)  # info: finitude-replay stays a program
        archive.writestr(record, "\n".join(lines) + "\n")


def tools():
    """The Python that has auditwheel."""
    python = HOME / "tools/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / "tools"], check=True)
    requirements = ROOT / "requirements/wheels.txt"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements], check=True
    )
    return python


def repair(python, wheel, log):
    """The wheel with its manylinux tag, in DIST; None where it needs what a bare system lacks."""
    before = set(DIST.glob("*.whl"))
    for old in before:
        if old.name.split("-")[2] == wheel.name.split("-")[2]:
            old.unlink()
    exclude = [word for name in TORCH_LIBRARIES for word in ("--exclude", name)]
    command = [python, "-m", "auditwheel", "repair", *exclude, "--wheel-dir", DIST, wheel]
    path = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    if not run("auditwheel", command, log, env=path):
        return None
    return next(DIST.glob(f"*-{wheel.name.split('-')[2]}-*.whl"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", metavar="PYTHON:TORCH", nargs="*")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    for pair in options.pairs:
        if not PAIR.fullmatch(pair):
            parser.error(f"{pair}: want PYTHON:TORCH, such as 3.12:2.13.0")
    here = Installed()
    pairs = [tuple(pair.split(":")) for pair in options.pairs] or [(here.version, here.torch)]
    if options.all:
        pairs = supported_pairs()
    started, bad, built = time.monotonic(), 0, collections.defaultdict(list)
    for number, (version, torch) in enumerate(pairs, 1):
        print(f"[{number} of {len(pairs)}] torch {torch} on Python {version}", flush=True)
        python = find_python(version)
        environment = environment_for(version, torch)
        if python is None and not isinstance(environment, Installed):
            print(f"    no Python {version} here")
            bad += 1
            continue
        wheel = build(environment, python)
        bad += wheel is None
        if wheel is not None:
            built[version].append(wheel)
    for version, wheels in built.items():
        print(f"[Python {version}] {len(wheels)} engine{'s' if len(wheels) > 1 else ''} in one wheel", flush=True)
        merged = HOME / "merged" / wheels[0].name
        merge(wheels, merged)
        done = repair(tools(), merged, HOME / "auditwheel.txt")
        bad += done is None
        if done is not None:
            print(f"    {done.relative_to(ROOT)}, {done.stat().st_size / 1e6:.1f} MB")
    print(f"make wheels: {time.monotonic() - started:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
