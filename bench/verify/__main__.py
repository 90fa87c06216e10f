"""python -m bench.verify [--flips N] [--healthy N] [--rounds N] [--seed S] [--out FILE]

Changes one bit at seeded places of small trainings, and counts how often a verified step finds it and names it; verifies
healthy steps; measures what a verified step costs. Writes docs/verify.md below its line of
dashes.
"""

import argparse
import datetime
import os
import pathlib
import statistics
import sys
import tempfile
import time

import torch

from . import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]


def healthy(count):
    """Steps that were verified, mismatches, and operators whose bits differ between plays."""
    steps, mismatches, operators = 0, 0, set()
    while steps < count:
        for name in programs.MODELS:
            for optimizer in programs.OPTIMIZERS:
                _, counts = programs.train(name, optimizer, min(2000, count), "every=1")
                steps += counts["steps"]
                mismatches += counts["mismatches"]
                operators |= set(counts["nondeterministic"])
    return steps, mismatches, sorted(operators)


def cost(rounds, every=20):
    """What a verified step takes beyond one that is not, in steps: the median of so many rounds of `every` steps, and
    each of them. A round's time is compared with the median step of all rounds, so that other load of the machine counts
    for little."""
    import finitude

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(128, 512)
    seconds = []
    with (
        tempfile.TemporaryDirectory() as folder,
        finitude.watch(model, optimizer, runs=folder, verify=f"every={every}", quiet=True),
    ):
        for _ in range(every * (rounds + 1)):
            began = time.process_time()
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            seconds.append(time.process_time() - began)
    seconds = seconds[every:]  # the first round makes much for the first time
    usual = statistics.median(seconds)
    extra = [sum(seconds[i : i + every]) / usual - every for i in range(0, len(seconds), every)]
    return statistics.median(extra), extra


def main():
    parser = argparse.ArgumentParser(prog="bench.verify")
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--healthy", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(ROOT / "docs/verify.md"))
    options = parser.parse_args()
    table, missed = programs.tried(options.flips, options.seed)
    steps, mismatches, operators = healthy(options.healthy) if options.healthy else (0, 0, [])
    extra, each = cost(options.rounds) if options.rounds else (0.0, [])
    lines = [
        f"`python -m bench.verify --flips {options.flips} --healthy {options.healthy} --rounds {options.rounds} "
        f"--seed {options.seed}`, {datetime.date.today()}, {os.cpu_count()} cores, torch {torch.__version__}.",
        "",
        "| a bit changed in | finite steps | found | named right | NaN or Inf: an alarm |",
        "|---|---|---|---|---|",
        *(f"| {kind} | {' | '.join(map(str, counts))} |" for kind, counts in table.items()),
        "",
        f"Healthy steps verified: {steps}; reported: {mismatches}"
        + (f"; operators that differ between plays: {', '.join(operators)}." if operators else "."),
    ]
    if each:
        lines += [
            "",
            f"Cost of a verified step, the median of {len(each)} rounds: {extra:.2f} steps, so {extra / 2:.2f} % of the "
            f"time with `--verify every=200`; from {min(each):.2f} to {max(each):.2f} steps.",
        ]
    out = pathlib.Path(options.out)
    head, dashes, _ = out.read_text().partition("\n---\n") if out.exists() else ("", "\n---\n", "")
    out.write_text(head + (dashes or "\n---\n") + "\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))
    for one in missed:
        print("not named:", *one, file=sys.stderr)


if __name__ == "__main__":
    main()
