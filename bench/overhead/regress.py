"""python -m bench.overhead.regress BASE [--seconds N] [--rounds N] [--only REGEX] [--folder DIR]

Compares the overhead of this working tree with that of another revision. Both are built the same way, in folders of
their own; then processes of the two take turns, in random order, each measuring its own overhead in pairs. What is
compared is the overhead, not the step, so a process that ran in a slow moment does not count as a change.

Exit code 1 where the tree is worse: the interval of the difference lies above 0.3 points of the step and above 0.3 us.
3 where noise leaves that open in some cell (more --rounds decide it), 0 where no cell is worse, 2 where the command
line is wrong."""

import argparse
import contextlib
import functools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from . import __main__ as overhead, machine, stats

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
    """The tree of a revision; of the working tree, with what is changed and new in it, where revision is None. What
    lies in the folder from another time is brought up to date, and stays untouched where it is the same, so that it is
    not built again."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        fresh = pathlib.Path(temporary) / "tree" if revision else ROOT
        if revision:
            fresh.mkdir()
            archive = pathlib.Path(temporary) / "tree.tar"
            _run("git", "archive", "-o", str(archive), revision, cwd=ROOT)
            _run("tar", "-xf", str(archive), "-C", str(fresh))
            names = {str(p.relative_to(fresh)) for p in fresh.rglob("*") if p.is_file()}
        else:
            listed = _run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
            names = {name for name in listed if (ROOT / name).is_file()}
        for name in names:
            old = folder / name
            if not old.is_file() or old.read_bytes() != (fresh / name).read_bytes():
                old.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(fresh / name, old)
    for old in folder.rglob("*"):
        if old.is_file() and str(old.relative_to(folder)) not in names:
            old.unlink()


def build(folder):
    """Builds the extension of that tree beside its Python files; the folder to put on PYTHONPATH."""
    build_folder = folder.parent / f"{folder.name}-build"
    environment = {**os.environ, "CCACHE_BASEDIR": str(folder.parent), "CCACHE_NOHASHDIR": "1"}
    _run(
        "cmake",
        "-S",
        str(folder),
        "-B",
        str(build_folder),
        "-G",
        "Ninja",
        "-DFINITUDE_TORCH=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
        "--log-level=WARNING",
        env=environment,
    )
    _run(
        "cmake",
        "--build",
        str(build_folder),
        "--target",
        "_native",
        f"-j{min(2, os.cpu_count() or 1)}",
        env=environment,
    )
    if (build_folder / "_engines").exists():
        shutil.copytree(build_folder / "_engines", folder / "python/finitude/_engines", dirs_exist_ok=True)
    for library in build_folder.glob("_native*.so"):  # of a commit before there were several engines
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


def verdict(points, microseconds):
    """ "worse", "not worse", or "undecided", of the Estimates of a difference: worse is what is so by both measures."""
    if points.low > POINTS and microseconds.low > MICROSECONDS:
        return "worse"
    if points.high <= POINTS or microseconds.high <= MICROSECONDS:
        return "not worse"
    return "undecided"


def take_turns(run, seed, rounds):
    """{"base": [...], "tree": [...]}: what run(name, round) returned. The two of a round come one after the other, in
    random order, so that a difference is one between neighbours in time."""
    rng = random.Random(seed)
    found = {"base": [], "tree": []}
    for number in range(rounds):
        for name in rng.sample(list(found), 2):
            found[name].append(run(name, number))
    return found


def compare(cells, run, rounds, say=print):
    """{cell: verdict}. run(name, spec, round) measures "base" or "tree": (points of the step, microseconds)."""
    verdicts = {}
    say(f"{'cell':12} {'base':>22} {'tree':>22}  difference (points, us)")
    for seed, (cell, spec) in enumerate(cells.items(), 7):
        found = take_turns(lambda name, number: run(name, spec, number), seed, rounds)
        points, us = (stats.median_of(t[i] - b[i] for t, b in zip(found["tree"], found["base"])) for i in (0, 1))
        verdicts[cell] = verdict(points, us)
        middle = [tuple(stats.median_of(v[i] for v in found[n]).value for i in (0, 1)) for n in ("base", "tree")]
        text = [f"{percent:+.2f} % {time:+.2f} us" for percent, time in middle]
        say(
            f"{cell:12} {text[0]:>22} {text[1]:>22}  {points.value:+.2f} [{points.low:+.2f}, {points.high:+.2f}], "
            f"{us.value:+.2f} [{us.low:+.2f}, {us.high:+.2f}]  {verdicts[cell]}"
        )
    return verdicts


def exit_code(verdicts):
    found = set(verdicts.values())
    return 1 if "worse" in found else 3 if "undecided" in found else 0


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.overhead.regress", description=__doc__.split("\n\n")[1])
    parser.add_argument("base", help="a git revision, e.g. v0.1.0")
    parser.add_argument("--seconds", type=float, default=6, help="of one process (6)")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of processes per cell (6)")
    parser.add_argument("--only", default="", metavar="REGEX", help="cells whose name matches: " + ", ".join(CELLS))
    parser.add_argument(
        "--folder", metavar="DIR", help="build there and leave it: the next call builds only what has changed"
    )
    options = parser.parse_args(argv)
    cells = {n: c for n, c in CELLS.items() if re.search(options.only, n)}
    if not cells:
        parser.error(f"no cell matches {options.only}; there are {', '.join(CELLS)}")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(
            options.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="finitude-regress-"))
        )
        folder = folder.resolve()
        paths = {}
        for name, revision in (("base", options.base), ("tree", None)):
            print(f"building {name} ({revision or 'the working tree'})", flush=True)
            sources_of(revision, folder / name)
            paths[name] = build(folder / name)

        def run(name, spec, number):
            return process(
                paths[name],
                {
                    "measure": "overhead",
                    "threads": 1,
                    "seconds": options.seconds,
                    "seed": number,
                    "meter": False,
                    **spec,
                },
            )

        return exit_code(compare(cells, run, options.rounds, functools.partial(print, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
