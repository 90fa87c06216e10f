"""python -m bench.lines [--out FILE]

Counts instructions and cache lines of training steps with and without the recorder, by valgrind's simulation of this
machine's L1 and L2: nothing here depends on what else the machine does. Writes build/overhead-lines.md. Needs valgrind.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.lines import callgrind  # noqa: E402
from bench.overhead import machine  # noqa: E402
from bench.overhead.cells import MODEL_TEXT  # noqa: E402

STEPS = {"tiny": (100, 600), "mlp": (10, 40)}  # the difference of both is steps, and no start of a program
STATES = ("off", "gate", "all")


def geometry():
    """valgrind's words for L1 and L2 of this machine, whose sets must be a power of two; L2 is what it calls the last
    level."""
    words = []
    for option, index, fallback in (("I1", 1, "32768,8,64"), ("D1", 0, "32768,8,64"), ("LL", 2, "1048576,16,64")):
        folder = pathlib.Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}")
        try:
            size = int(re.sub(r"K$", "", (folder / "size").read_text().strip())) << 10
            ways = int((folder / "ways_of_associativity").read_text())
        except (OSError, ValueError):
            size = ways = 0
        sets = size // (ways * 64) if ways else 0
        words.append(f"--{option}={size},{ways},64" if sets and sets & (sets - 1) == 0 else f"--{option}={fallback}")
    return words


def count(kind, state, steps, folder):
    out = pathlib.Path(folder, f"{kind}-{state}-{steps}.out")
    env = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",
    }
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            "--cache-sim=yes",
            *geometry(),
            machine.python(),
            str(ROOT / "bench/lines/steps.py"),
            kind,
            state,
            str(steps),
        ],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"bench.lines: {kind} {state}: exit code {done.returncode}: "
            f"{(done.stderr.strip().splitlines() or ['nothing'])[-1]}"
        )
    return callgrind.by_object(out.read_text(errors="replace"))


def per_step(few, many, steps):
    """{"ours" | "program": (instructions, L1 lines, L2 lines) of one step} from the counts of few steps and of many."""
    sums = {"ours": [0.0] * 3, "program": [0.0] * 3}
    for name in {*few, *many}:
        nothing = [0] * len(callgrind.COUNTED)
        one, other = callgrind.misses(few.get(name, nothing)), callgrind.misses(many.get(name, nothing))
        whose = "ours" if pathlib.Path(name).name.startswith(("_native.", "libfinitude")) else "program"
        for i in range(3):
            sums[whose][i] += (other[i] - one[i]) / (steps[1] - steps[0])
    return {whose: tuple(values) for whose, values in sums.items()}


def page(found):
    """found: {(kind, state): per_step}."""
    out = [
        "# What a watched step displaces",
        "",
        "Our own code takes [as long as the meter says](overhead-pieces.md), and pairs of steps "
        "with and without it differ by more where the",
        "step is small. This page counts why: the lines of the caches that we take are lines that "
        "the program has to fetch again.",
        "",
        *machine.lines("make bench-lines"),
        f"- valgrind's callgrind, {' '.join(geometry())}",
        "",
        "**How.** Every load, store and instruction of AdamW foreach steps is counted by valgrind, "
        "which simulates the caches: exact, and the",
        "same on a busy machine, but a simulation (least recently used, nothing fetched ahead, AVX2 "
        "kernels). A line has 64 bytes.",
        "",
        "| step of | watched | instructions | ours | the program's more | lines from beyond L1 | "
        "ours | the program's more | lines from beyond "
        "L2 | ours | the program's more |",
        "|" + "---|" * 11,
    ]
    text = lambda x: f"{x / 1000:.1f}k" if abs(x) >= 10000 else f"{x:.0f}"  # noqa: E731
    for kind in dict.fromkeys(k for k, _ in found):
        base = found[kind, "off"]["program"]
        for state in STATES:
            ours, program = found[kind, state]["ours"], found[kind, state]["program"]
            cells = [
                c for i in range(3) for c in (text(ours[i] + program[i]), text(ours[i]), text(program[i] - base[i]))
            ]
            out.append(f"| {MODEL_TEXT[kind]} | {state} | " + " | ".join(cells) + " |")
    out += [
        "",
        "*The program's more* is what its own code pays beside ours: Python's and torch's functions "
        "that we call, and, in the",
        "last column, what of its code and data has gone from L2 by the time it is needed again. A "
        "step whose own lines just fit into L2",
        "(the first model) pays most for that; one that goes through more memory than L2 holds "
        "fetches its lines again anyway.",
        "",
    ]
    return "\n".join(out)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.lines", description="Writes build/overhead-lines.md.")
    parser.add_argument("--out", default=str(ROOT / "build/overhead-lines.md"))
    options = parser.parse_args(argv)
    if shutil.which("valgrind") is None:
        parser.error("needs valgrind: apt-get install valgrind, or make bench-lines")
    jobs = [(kind, state, steps) for kind in STEPS for state in STATES for steps in reversed(STEPS[kind])]
    counts = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(count, *job, folder): job for job in jobs}
        for number, done in enumerate(concurrent.futures.as_completed(running), 1):
            counts[running[done]] = done.result()
            print(f"[{number} of {len(jobs)}] {' '.join(map(str, running[done]))}", flush=True)
    found = {
        (kind, state): per_step(*(counts[kind, state, n] for n in STEPS[kind]), STEPS[kind])
        for kind in STEPS
        for state in STATES
    }
    pathlib.Path(options.out).write_text(page(found))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
