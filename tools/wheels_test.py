"""Installs each wheel of build/wheels/dist as a user would and runs it; marks the pairs in docs/compatibility.md.

    python tools/wheels_test.py [--no-page]

For each engine in a wheel: a bare venv, with the torch that the engine was built for and its dependencies linked in from
where it was built; then, without network, compiler, headers and the libraries that only a developer has: pip installs
the wheel, examples/digits.py is stopped by `finitude run`, these two commands within a minute, and its capsule is
replayed by both players. Only root can hide all this (unshare); others get an empty PATH and no package index, and no
mark."""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import zipfile

import test_matrix
from torch_environments import ROOT, Installed

DIST = ROOT / "build/wheels/dist"
HOME = ROOT / "build/wheels/test"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MOST_SECONDS = 60  # from the wheel to the explained NaN
TOOK = re.compile(r"On \d{4}-\d\d-\d\d the two commands took \d+ s at most")
# Hidden from what is tested: as if no package of apt had been installed for a build.
HIDDEN = ["/usr/include", "/usr/local/include", "/usr/lib/gcc", "/usr/local/cuda", f"{LIBRARIES}/cmake"]
HIDDEN_LIBRARIES = ["libhwy*", "libgomp*", "libgtest*", "libbenchmark*"]
# The names of what a requirement installed, with all that it requires in turn.
CLOSURE = """
import importlib.metadata as m, re, sys
left, seen = sys.argv[1:], set()
while left:
    name = re.match(r'[A-Za-z0-9._-]+', left.pop()).group().lower().replace('_', '-')
    if name in seen: continue
    seen.add(name)
    try: found = m.distribution(name)
    except m.PackageNotFoundError: continue
    for f in found.files or (): print(f.parts[0])
    left += [r for r in found.requires or () if 'extra ==' not in r]
"""


def isolation():
    """The command that hides what a bare machine lacks, or () where this user may not."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode:
        return ()
    (HOME / "empty").mkdir(parents=True, exist_ok=True)
    folders = [path for path in HIDDEN if os.path.isdir(path)]
    files = [str(path) for name in HIDDEN_LIBRARIES for path in pathlib.Path(LIBRARIES).glob(name) if path.is_file()]
    hide = [f"mount --bind {HOME / 'empty'} {path}" for path in folders]
    hide += [f"mount --bind {os.devnull} {path}" for path in files if not os.path.islink(path)]
    return ("unshare", "-n", "-m", "sh", "-ec", "\n".join([*hide, 'exec "$@"']), "sh")


def engines(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = (re.search(r"/_engines/torch(\d+)_(\d+)/_native", name) for name in archive.namelist())
        return sorted(f"{match[1]}.{match[2]}" for match in found if match)


def built_in(version, minor):
    """The interpreter with that torch, in which the engine was built; None if it is gone."""
    here = Installed()
    if here.version == version and here.torch.startswith(f"{minor}."):
        return here.python
    found = sorted((ROOT / "build/matrix").glob(f"python{version}-torch{minor}*/venv/bin/python"))
    return found[-1] if found else None


class Bare:
    """A venv without finitude, in which commands see no compiler, headers or network."""

    def __init__(self, folder, source, hide):
        self.folder, self.hide = folder, hide
        self.bin = folder / "venv/bin"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        base = subprocess.check_output([source, "-c", "import sys; print(sys._base_executable)"], text=True).strip()
        subprocess.run([base, "-m", "venv", folder / "venv"], check=True)
        listed = subprocess.check_output([source, "-c", CLOSURE, "torch", "scikit-learn", "tomli"], text=True)
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = pathlib.Path(subprocess.check_output([source, "-c", ask], text=True).strip())
        own = pathlib.Path(subprocess.check_output([self.bin / "python", "-c", ask], text=True).strip())
        for name in sorted(set(listed.split()) - {"..", "__pycache__", "pip"}):
            if (packages / name).exists() and not (own / name).exists():
                subprocess.run(["cp", "-al", packages / name, own / name], check=True)
        # torch_environments.py puts stand-ins for the CUDA libraries there, which torch looks for in packages of pip.
        self.libraries = own / "torch/lib"

    def run(self, *command):
        variables = [f"PATH={self.bin}", f"HOME={self.folder}", "LANG=C.UTF-8", f"LD_LIBRARY_PATH={self.libraries}"]
        words = [*self.hide, "/usr/bin/env", "-i", *variables, *map(str, command)]
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True)


def problem(bare, wheel):
    """(what does not hold of that wheel there, or None; the seconds from the wheel to the explained NaN)"""
    started = time.monotonic()
    why = why_not_explained(bare, wheel)
    took = time.monotonic() - started
    if why is None and took > MOST_SECONDS:
        why = f"pip install and finitude run took {took:.0f} s, more than {MOST_SECONDS} s"
    return why or why_not_replayed(bare), took


def why_not_explained(bare, wheel):
    installed = bare.run(bare.bin / "python", "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    if installed.returncode:
        return f"pip: {installed.stderr}"
    shutil.copy(ROOT / "examples/digits.py", bare.folder)
    ended = bare.run(bare.bin / "finitude", "run", "--report", "report.json", "--runs", "runs", "digits.py")
    try:
        report = json.loads((bare.folder / "report.json").read_text())
    except OSError:
        return f"the demo: {ended.stdout}{ended.stderr}"
    alarm = report["alarms"][0] if report["outcome"] == "alarm" else {}
    if ended.returncode == 0 or not alarm.get("births") or not alarm.get("capsule"):
        return f"the demo: {ended.stdout}{ended.stderr}"
    return None


def why_not_replayed(bare):
    if bare.run("/bin/sh", "-c", "command -v c++ g++ cc gcc clang cmake").returncode == 0:
        return "a compiler is in sight"
    alarm = json.loads((bare.folder / "report.json").read_text())["alarms"][0]
    for player in (["finitude", "replay"], ["finitude-replay"]):
        replayed = bare.run(bare.bin / player[0], *player[1:], alarm["capsule"])
        if replayed.returncode or "identical" not in replayed.stdout:
            return f"{' '.join(player)} {alarm['capsule']}: {replayed.stdout}{replayed.stderr}"
    return None


def took_text(seconds):
    return f"On {datetime.date.today().isoformat()} the two commands took {seconds:.0f} s at most"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-page", action="store_true", help="leave docs/compatibility.md as it is")
    options = parser.parse_args()
    wheels = sorted(DIST.glob("*.whl"))
    if not wheels:
        sys.exit("wheels_test: there is no wheel in build/wheels/dist; run make wheels")
    hide = isolation()
    if not hide:
        print("Not root: compiler and network are out of the way, but not hidden; nothing is marked.")
    bad = longest = 0
    for wheel in wheels:
        tag = wheel.name.split("-")[2]
        version = f"{tag[2]}.{tag[3:]}"
        for minor in engines(wheel):
            started = time.monotonic()
            source = built_in(version, minor)
            if source is None:
                print(f"torch {minor} on Python {version}: no environment with it is left; run make wheels")
                bad += 1
                continue
            bare = Bare(HOME / f"python{version}-torch{minor}", source, hide)
            why, seconds = problem(bare, wheel)
            longest = max(longest, seconds)
            took = f"{time.monotonic() - started:.0f} s, from the wheel to the explained NaN {seconds:.0f} s"
            print(f"torch {minor} on Python {version}, {wheel.name}: {why or 'works'}, {took}", flush=True)
            bad += why is not None
            if why is None and hide and not options.no_page:
                ask = "import torch.version as v; print(v.__version__.partition('+')[0])"
                torch = subprocess.check_output([source, "-c", ask], text=True).strip()
                test_matrix.record_wheel(version, torch)
    if longest and not bad and hide and not options.no_page:
        page, found = TOOK.subn(took_text(longest), test_matrix.PAGE.read_text())
        if found != 1:
            raise ValueError(f"{test_matrix.PAGE} has {found} places for what the two commands took")
        test_matrix.PAGE.write_text(page)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
