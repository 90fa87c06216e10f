"""python -m bench.verify [--flips N] [--healthy N] [--pairs N] [--seed S] [--out FILE]

Changes one bit at seeded places of small trainings, and counts how often a verified step finds it and names it; verifies
healthy steps; measures the cost of --verify every=200 in interleaved blocks. Writes docs/verify.md below its line of
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


def cost(pairs, block=200):
    """Seconds of a block of steps with --verify every=200, by those without: median, and each pair."""
    import finitude

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(128, 512)

    def timed(verify):
        with (
            tempfile.TemporaryDirectory() as folder,
            finitude.watch(model, optimizer, runs=folder, verify=verify, quiet=True),
        ):
            for i in range(block + 4):
                if i == 4:
                    began = time.process_time(), time.perf_counter()
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            return time.perf_counter() - began[1]

    timed("")
    ratios = []
    for i in range(pairs):
        order = ("", f"every={block}") if i % 2 else (f"every={block}", "")
        seconds = {verify: timed(verify) for verify in order}
        ratios.append(seconds[f"every={block}"] / seconds[""])
    return ratios


def main():
    parser = argparse.ArgumentParser(prog="bench.verify")
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--healthy", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(ROOT / "docs/verify.md"))
    options = parser.parse_args()
    table, missed = programs.tried(options.flips, options.seed)
    steps, mismatches, operators = healthy(options.healthy) if options.healthy else (0, 0, [])
    ratios = cost(options.pairs) if options.pairs else []
    lines = [
        f"`python -m bench.verify --flips {options.flips} --healthy {options.healthy} --pairs {options.pairs} "
        f"--seed {options.seed}`, {datetime.date.today()}, {os.cpu_count()} cores, torch {torch.__version__}.",
        "",
        "| a bit changed in | finite steps | found | named right | NaN or Inf: an alarm |",
        "|---|---|---|---|---|",
        *(f"| {kind} | {' | '.join(map(str, counts))} |" for kind, counts in table.items()),
        "",
        f"Healthy steps verified: {steps}; reported: {mismatches}"
        + (f"; operators that differ between plays: {', '.join(operators)}." if operators else "."),
    ]
    if ratios:
        lines += [
            "",
            f"Cost of `--verify every=200`, {len(ratios)} pairs of blocks of 200 steps in one process, interleaved: "
            f"median {(statistics.median(ratios) - 1) * 100:+.2f} % of the time, from "
            f"{(min(ratios) - 1) * 100:+.2f} % to {(max(ratios) - 1) * 100:+.2f} %.",
        ]
    out = pathlib.Path(options.out)
    head, dashes, _ = out.read_text().partition("\n---\n") if out.exists() else ("", "\n---\n", "")
    out.write_text(head + (dashes or "\n---\n") + "\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))
    for one in missed:
        print("not named:", *one, file=sys.stderr)


if __name__ == "__main__":
    main()
