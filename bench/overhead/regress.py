"""python -m bench.overhead.regress BASE [--seconds N] [--rounds N] [--only REGEX]

Compares the overhead of this working tree with that of another revision. Both are built the same way in temporary folders;
then processes of the two take turns, in random order, each measuring its own overhead in pairs. What is compared is the
overhead, not the step, so a process that ran in a slow moment does not count as a change.

Exit code 1 where the tree is worse: the interval of the difference lies above 0.3 points of the step and above 0.3 us.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from . import __main__ as overhead
from . import machine, stats

ROOT = machine.ROOT
CELLS = {
    "tiny": {"kind": "tiny", "optimizer": "adamw", "loader": True},
    "mlp-fused": {"kind": "mlp", "optimizer": "adamw-fused"},
    "mlp-clip": {"kind": "mlp", "optimizer": "adamw-clip"},
    "gpt-toy": {"kind": "gpt-toy", "optimizer": "adamw"},
}
POINTS, MICROSECONDS = 0.3, 0.3


def _run(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words[:6]))} ...\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def sources_of(revision, folder):
    """The tree of a revision; of the working tree, with what is changed and new in it, where revision is None."""
    if revision is None:
        names = _run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
        for name in names:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        return
    archive = folder.parent / f"{folder.name}.tar"
    _run("git", "archive", "-o", str(archive), revision, cwd=ROOT)
    folder.mkdir(parents=True)
    _run("tar", "-xf", str(archive), "-C", str(folder))


def build(folder):
    """Builds the extension of that tree beside its Python files; the folder to put on PYTHONPATH."""
    build_folder = folder.parent / f"{folder.name}-build"
    environment = {**os.environ, "CCACHE_BASEDIR": str(folder.parent), "CCACHE_NOHASHDIR": "1"}
    _run("cmake", "-S", str(folder), "-B", str(build_folder), "-G", "Ninja", "-DFINITUDE_TORCH=ON",
         f"-DPython_EXECUTABLE={sys.executable}", "--log-level=WARNING", env=environment)
    _run("cmake", "--build", str(build_folder), "--target", "_native", f"-j{min(2, os.cpu_count() or 1)}", env=environment)
    for library in build_folder.glob("_native*.so"):
        shutil.copy2(library, folder / "python/finitude")
    return folder / "python"


def process(python_path, spec):
    """The overhead that one process found: (points of the step, microseconds), medians of its pairs."""
    env = {**overhead.environment(spec["threads"]), "PYTHONPATH": str(python_path)}
    result, why = overhead.run_cell(spec, timeout=120 + 20 * spec["seconds"], env=env)
    if result is None:
        sys.exit(f"{python_path}: {why}")
    on, off = result["cpu"]["on"], result["cpu"]["off"]
    return 100 * (stats.pair_ratio(on, off).value - 1), stats.pair_difference(on, off).value / 1e3


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.overhead.regress", description=__doc__.split("\n\n")[1])
    parser.add_argument("base", help="a git revision, e.g. v0.1.0")
    parser.add_argument("--seconds", type=float, default=6, help="of one process (6)")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of processes per cell (6)")
    parser.add_argument("--only", default="", metavar="REGEX")
    options = parser.parse_args(argv)
    cells = {n: c for n, c in CELLS.items() if re.search(options.only, n)}
    with tempfile.TemporaryDirectory(prefix="finitude-regress-") as temporary:
        folder = pathlib.Path(temporary)
        paths = {}
        for name, revision in (("base", options.base), ("tree", None)):
            print(f"building {name} ({revision or 'the working tree'})", flush=True)
            sources_of(revision, folder / name)
            paths[name] = build(folder / name)
        rng = random.Random(7)
        worse = 0
        print(f"{'cell':12} {'base':>22} {'tree':>22} {'difference (points, us)':>44}")
        for cell, spec in cells.items():
            found = {"base": [], "tree": []}
            for number in range(options.rounds):
                for name in rng.sample(list(paths), 2):
                    found[name].append(process(paths[name], {"measure": "overhead", "threads": 1, "seconds": options.seconds,
                                                             "seed": number, "meter": False, **spec}))
            points = stats.median_of(t[0] - b[0] for t, b in zip(found["tree"], found["base"]))
            us = stats.median_of(t[1] - b[1] for t, b in zip(found["tree"], found["base"]))
            middle = {n: [stats.median_of(v[i] for v in found[n]).value for i in (0, 1)] for n in found}
            bad = points.low > POINTS and us.low > MICROSECONDS
            worse += bad
            cells_text = [f"{middle[n][0]:+.2f} % {middle[n][1]:+.2f} us" for n in ("base", "tree")]
            print(f"{cell:12} {cells_text[0]:>22} {cells_text[1]:>22}  {points.value:+.2f} [{points.low:+.2f}, {points.high:+.2f}], "
                  f"{us.value:+.2f} [{us.low:+.2f}, {us.high:+.2f}]{'  WORSE' if bad else ''}", flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
