"""python -m bench.silent [--steps N] [--out FILE] [--only WORD]

Runs `finitude doctor` on thirty trainings with a silent fault and on healthy ones, and counts what is found and what is
invented. --out docs/silent-bugs.md writes that page below its line of dashes.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import datetime
import pathlib
import platform
import sys
import tempfile

from . import healthy, programs, variants
from .healthy import CHECKS, ROOT, healthy_files

STEPS = 20
DASHES = "\n---\n"


def import_once():
    """What each examined script imports: done before the forks."""
    import torch
    import torch._dynamo  # noqa: F401

    torch.set_num_threads(1)


def findings(path, steps=STEPS, seconds=60.0):
    """[(check id, verdict, text)] of the source and the first steps; why the steps could not be seen, or ""."""
    from finitude.doctor import command, first_steps, source
    from finitude.doctor.facts import Steps

    examination, why = command.Examination(), ""
    examination.look("source", source.read(str(path)))
    try:
        facts, _ = first_steps.run(str(path), False, [], steps, seconds)
        examination.look("steps", seen := Steps(facts))
        why = "" if seen.steps or seen.ended == "finished" else seen.error or seen.ended
        examination.trouble += seen.trouble
    except first_steps.CannotRun as e:
        why = str(e)
    return [(c.id, f.verdict, f.text) for c, _, f in examination.findings], why, examination.trouble


def of_text(text, folder, steps=STEPS):
    path = pathlib.Path(folder, "train.py")
    path.write_text(text)
    return findings(path, steps)


def is_found(check, found):
    return any(c == check and verdict != "note" for c, verdict, _ in found)


def invented(found):
    return [one for one in found if one[0] in CHECKS and one[1] != "note"]


def healthy_texts():
    return {"twins of the faults, and programs that look like one": dict(healthy.PROGRAMS)}


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m bench.silent")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    import_once()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        count, lines = _faults(programs.BUGS, folder, options)
        others, more = _faults(variants.PROGRAMS, folder, options)
        groups, wrong = _healthy(folder, options)
    head = [
        f"Command: `python -m bench.silent --steps {options.steps}`, {datetime.date.today():%Y-%m-%d}, "
        f"{platform.machine()}, Python {platform.python_version()}, torch {_torch()}.",
        "",
        f"Found: {count} of {len(lines) - 2} faults, {others} of {len(more) - 2} variants. Invented: {sum(n for _, _, n in groups)} findings of these checks in "
        f"{sum(n for _, n, _ in groups)} healthy programs.",
        "",
        "| healthy programs | examined | with a warning of P24 to P31 |",
        "|---|---|---|",
        *(f"| {name} | {n} | {bad} |" for name, n, bad in groups),
        *([""] + [f"- {one}" for one in wrong] if wrong else []),
        "",
        *lines,
        "",
        "Variants, which were written after the checks. The checks were not changed for them but for one defect that they "
        "showed: P29 did not see a sigmoid in front of a loss that takes logits.",
        "",
        *more,
    ]
    print("\n".join(head[:10]))
    if options.out:
        above = options.out.read_text().split(DASHES)[0]
        options.out.write_text(above + DASHES + "\n" + "\n".join(head) + "\n")
    return 0


def _faults(bugs, folder, options):
    """(how many are found, lines of a table)."""
    lines, count = ["| fault | check | found | says |", "|---|---|---|---|"], 0
    for name, (check, text) in bugs.items():
        if options.only not in name:
            continue
        found, why, trouble = of_text(text, folder, options.steps)
        hit = is_found(check, found)
        count += hit
        said = next((t for c, v, t in found if c == check and v != "note"), why)
        lines.append(f"| {name} | {check} | {'yes' if hit else '**no**'} | {said.replace('|', '/')[:240]} |")
        print("found " if hit else "MISSED", check, name, trouble or "", flush=True)
    return count, lines


def _healthy(folder, options):
    groups, wrong, unseen = [], [], []
    for name, files in [*healthy_files().items(), *healthy_texts().items()]:
        bad = n = 0
        for file in files:
            label = file if isinstance(file, str) else str(file.relative_to(ROOT))
            if options.only not in label:
                continue
            if isinstance(file, str):
                found, why, trouble = of_text(files[file], folder, options.steps)
            else:
                found, why, trouble = findings(file, options.steps)
            made = invented(found)
            bad, n = bad + bool(made), n + (not why)
            unseen += [f"{label}: first steps not seen: {why[:160]}"] if why else []
            wrong += [f"{label}: {c} {text[:160]}" for c, _, text in made]
            print("INVENTED" if made else "silent", label, made or "", why[:80], trouble or "", flush=True)
        groups.append((name, n, bad))
    return groups, wrong + unseen


def _torch():
    import torch

    return torch.__version__.split("+")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
