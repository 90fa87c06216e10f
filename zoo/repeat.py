"""Explains each positive case several times, with other bytes in memory that nobody has written, and compares
what is said: python -m zoo.repeat.

A verdict may depend neither on what such memory holds by chance nor on the order of anything that has
none.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from . import cases, judge, runner

# Of freed memory; handed out is the complement. Zeros, the largest floats, small ones, negative ones, and
# what chance leaves.
FILLS = (255, 128, 0, 60, 195, 0, 127, 1, 0, 254)


def story(report):
    """What must not change: the verdict, and of the first finding the cause, the place and the fix."""
    if not isinstance(report, dict):
        return ("no report",)
    alarm = judge.first_alarm(report)
    finding = alarm or next((a for a in report.get("advisories") or [] if a.get("cause")), {})
    birth = (finding.get("births") or [{}])[0]
    fix = finding.get("fix") or {}
    return (
        report.get("outcome"),
        (finding.get("cause") or {}).get("class"),
        (finding.get("cause") or {}).get("confidence"),
        birth.get("op"),
        birth.get("line"),
        fix.get("text"),
        fix.get("line"),
    )


def sample(chosen, count, seed):
    """That many of the cases; 0: all."""
    return random.Random(f"repeat/{seed}").sample(chosen, min(count, len(chosen))) if count else chosen


def main(argv=None):
    p = argparse.ArgumentParser(prog="python -m zoo.repeat", description=__doc__.splitlines()[0])
    p.add_argument("--filter", default="")
    p.add_argument("--set", default="", metavar="SETS")
    p.add_argument("--times", type=int, default=10)
    p.add_argument("--sample", type=int, default=0, metavar="N", help="only so many cases, drawn by --seed")
    p.add_argument("--seed", default="0")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--limit", type=float, default=120)
    options = p.parse_args(argv)
    chosen = sample([c for c in cases.choose(options.filter, options.set) if c.positive], options.sample, options.seed)
    folder, began = Path(tempfile.mkdtemp(prefix="finitude-repeat-")), time.monotonic()
    reported, late = {case.slug: [] for case in chosen}, []
    try:
        runner.import_once()

        def on_end(run):
            reported[run.case.slug].append((run.fill, story(run.report())))
            if run.timed_out:
                late.append(run.case.slug)

        runs = [(case, folder / str(i), False, FILLS[i % len(FILLS)]) for case in chosen for i in range(options.times)]
        runner.execute(runs, options.jobs, options.limit, on_end)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    changing = {slug: stories for slug, stories in reported.items() if len({s for _, s in stories}) > 1}
    for slug, stories in changing.items():
        print(slug)
        for fill, one in sorted(stories, key=str):
            print(f"    {fill:3}  {one}")
    print(
        f"{len(chosen)} cases, {options.times} times each in {time.monotonic() - began:.0f} s: "
        f"{len(changing)} changed" + (f"; past the time limit: {', '.join(sorted(set(late)))}" if late else "")
    )
    return 1 if changing or late or not chosen else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "zoo.repeat", *sys.argv[1:]])
    sys.exit(main())
