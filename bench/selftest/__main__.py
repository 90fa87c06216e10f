"""python -m bench.selftest [--places N] [--seed S] [--program NAME] [--out FILE] [--json FILE]

Puts NaN, Inf and -Inf into five programs at random places, one place a run, and counts how often the recorder finds the
birth exactly there. Writes docs/selftest.md below its line of dashes.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import collections
import datetime
import json
import pathlib
import platform
import random
import shutil
import sys
import tempfile

from . import forked

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = sorted((pathlib.Path(__file__).parent / "programs").glob("*.py"))
PHASES = ("forward", "backward", "optimizer", "data", "state")
STEP = 3


def places_of(program, phases=PHASES[:3]):
    """Every single place of the step, once, with how many-th it is."""
    from finitude.selftest import command

    program.options.places, program.options.phase = 0, list(phases)
    return command.choose(program.places(), program.options)


def tried(script, count, seed, folder, phases=PHASES[:3]):
    """Results of `count` places that matter, drawn in a seeded order, and how many did not."""
    from finitude.selftest import command, options, verdict

    chosen = options.parse(["--at-step", str(STEP), "--seconds", "120", str(script)])
    program = command.Program(chosen, str(folder), forked.run)
    random_one = random.Random(f"{seed}/{script.stem}")
    places = places_of(program, phases)
    random_one.shuffle(places)
    results, harmless = [], 0
    for place in places:
        if len(results) == count:
            break
        result = program.inject(place, random_one.choice(options.VALUES), random_one.random())
        harmless += result["verdict"] == verdict.HARMLESS
        if result["verdict"] != verdict.HARMLESS:
            results.append(result)
        shutil.rmtree(os.path.join(program.folder, f"{program.runs - 1:03d}"), ignore_errors=True)
    return results, harmless, len(places)


def in_one_line(result):
    """A result that is not right, in one line."""
    from finitude.selftest import command

    said = "; ".join(f"{what}: put in {put}, found {found}" for what, (put, found) in result["differences"].items())
    text = (
        f"{result['value']}, {command.in_words(result['place'])}: "
        f"{result['verdict']}{' (' + said + ')' if said else ''} {result['words']}"
    )
    return text.replace(f"{PROGRAMS[0].parent}/", "").rstrip()


def row(name, results, harmless, offered):
    from finitude.selftest import verdict

    by_phase = collections.Counter(r["place"]["phase"] for r in results)
    exact = sum(r["verdict"] == verdict.FOUND for r in results)
    lines = sum(
        r["verdict"] == verdict.FOUND
        or r["verdict"] == verdict.ELSEWHERE
        and not {"line", "birth"} & set(r["differences"])
        for r in results
    )
    reruns = collections.Counter(r["alarm"]["rerun_by"] for r in results if r["alarm"])
    ways = ", ".join(f"{way} {n}" for way, n in sorted(reruns.items()))
    return (
        f"| {name} | {offered} | {len(results)} | "
        + " / ".join(str(by_phase[p]) for p in PHASES[:3])
        + f" | {lines} | {exact} | {harmless} | {ways} |"
    )


def page(rows, results, options):
    import torch

    from finitude.selftest import verdict

    exact = sum(r["verdict"] == verdict.FOUND for r in results)
    lines = sum(
        r["verdict"] == verdict.FOUND
        or r["verdict"] == verdict.ELSEWHERE
        and not {"line", "birth"} & set(r["differences"])
        for r in results
    )
    wrong = [f"- {in_one_line(r)}" for r in results if r["verdict"] != verdict.FOUND]
    return "\n".join(
        [
            f"{len(results)} places, seed {options.seed}, step {STEP}; torch {torch.__version__}, "
            f"{platform.machine()}, "
            f"{os.cpu_count()} cores, {datetime.date.today().isoformat()}.",
            "",
            f"**Line exact: {lines} of {len(results)} ({100 * lines / max(1, len(results)):.1f} %). "
            "Line, operation, module, phase and step "
            f"exact: {exact} ({100 * exact / max(1, len(results)):.1f} %).**",
            "",
            "| program | places in the step | tried | forward / backward / optimizer | line exact | "
            "all exact | drawn, but harmless | run again by |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            *(["What was not exact:", "", *wrong, ""] if wrong else []),
        ]
    )


def main(argv=None):
    p = argparse.ArgumentParser(prog="python -m bench.selftest", description=__doc__.splitlines()[0])
    p.add_argument("--places", type=int, default=200, help="over all programs")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--program", default="", help="only this one")
    p.add_argument("--out", default=str(ROOT / "docs" / "selftest.md"))
    p.add_argument("--json")
    options = p.parse_args(argv)
    forked.import_once()
    rows, all_results = [], []
    programs = [s for s in PROGRAMS if options.program in s.stem]
    folder = tempfile.mkdtemp()  # no TemporaryDirectory: a forked program would remove it as it ends
    try:
        for script in programs:
            results, harmless, offered = tried(
                script, options.places // len(programs), options.seed, os.path.join(folder, script.stem)
            )
            rows.append(row(script.stem, results, harmless, offered))
            all_results += results
            print(
                rows[-1], *(f"    {in_one_line(r)}" for r in results if r["verdict"] != "found"), sep="\n", flush=True
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(all_results, indent=1) + "\n")
    text = page(rows, all_results, options)
    if not options.program:
        out = pathlib.Path(options.out)
        head = out.read_text().split("\n---\n")[0] if out.exists() else ""
        out.write_text(f"{head}\n---\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
