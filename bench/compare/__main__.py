"""How often `finitude diff` of two dumps names what differs, and whether it invents a divergence where only rounding does:

    python -m bench.compare [--only TEXT] [--seeds N] [--write]      --write: docs/compare.md

Each training is watched in this process with --dump tensors; the program finitude-offline compares the two files."""

import argparse
import collections
import datetime
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import torch

import finitude
from finitude.base import programs

from . import pairs

NOISE_SEEDS, SEEDS = 5, 2
ABOUT = """# How often a comparison of dumps is right

Pairs of [dumps](dump.md) of seeded trainings (two to four residual blocks of linear layer, norm, activation, dropout and projection). In one half one thing
differs at a place drawn at random; right is: the `kind`, and the very record, and where given the module that one side has or the setting of
the optimizer. In the other half only rounding differs; right is: no divergence. Programs: `bench/compare/pairs.py`.
"""


def dumped(made, folder):
    """The file of the step that is dumped."""
    model = pairs.model_of(made)
    optimizer = pairs.optimizer_of(made, model)
    options = {"dump": "tensors", "dump_steps": str(made.step), "runs": str(folder), "quiet": True}
    with finitude.watch(model, optimizer, **options):
        pairs.train(made, model, optimizer)
    (file,) = folder.glob("*/dumps/step-*.json")
    return file


def judged(pair):
    """The document that `finitude diff --json` prints."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        a, b = (dumped(made, root / side) for made, side in zip(pair.sides(), "ab"))
        words = [programs.path_of(programs.OFFLINE), "diff", "--json", str(a), str(b)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{pair}: {done.stderr}")
        return json.loads(done.stdout)


def found_of(document):
    first = document["divergence"]
    return "none" if first is None else f"{first['kind']} at {first['a']['name']}"


def run(all_pairs, echo=print):
    """{change: [(pair, document)]}"""
    results = collections.defaultdict(list)
    for pair in all_pairs:
        document = judged(pair)
        results[pair.change].append((pair, document))
        if not pair.is_right(document):
            site = pair.sides()[0].site
            expected = f"{pair.kind} at {pair.where.format(site=site)}" if pair.kind else "none"
            echo(f"{pair.change} ({pair.seed}): {found_of(document)}, expected {expected}")
    return results


def right(results):
    all_of = [one for several in results.values() for one in several]
    return sum(pair.is_right(document) for pair, document in all_of), len(all_of)


def table(results, head):
    lines = [f"| {head} | right is | right | of |", "|---|---|---|---|"]
    for change, several in results.items():
        pair = several[0][0]
        is_right = sum(one.is_right(document) for one, document in several)
        expected = f"`{pair.kind}` at `{pair.where.format(site='N')}`" if pair.kind else "no divergence"
        lines.append(f"| {change} | {expected} | {is_right} | {len(several)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.compare")
    parser.add_argument("--only", default="", help="changes that contain this text")
    parser.add_argument("--seeds", type=int, default=1, help="times as many pairs")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    chosen = [
        [pair for pair in some if options.only in pair.change]
        for some in (pairs.changed(SEEDS * options.seeds), pairs.noisy(NOISE_SEEDS * options.seeds))
    ]
    changed, noisy = (run(some) for some in chosen)
    seconds = time.monotonic() - start
    sums = [right(results) for results in (changed, noisy)]
    said = f"First divergence right in {sums[0][0]} of {sums[0][1]}; none invented in {sums[1][0]} of {sums[1][1]}."
    print(f"{said} {seconds:.0f} s")
    if options.write:
        machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
        command = "python -m bench.compare --write" + (f" --seeds {options.seeds}" if options.seeds != 1 else "")
        head = f"`{command}`, {machine}, {datetime.date.today()}, {seconds:.0f} s. **{said}**"
        text = "\n".join(
            [ABOUT, head, "", table(changed, "B differs from A in"), "", table(noisy, "what rounds otherwise in B"), ""]
        )
        pathlib.Path(__file__).parents[2].joinpath("docs", "compare.md").write_text(text)
    return int(sums[0][0] < 0.95 * sums[0][1] or sums[1][0] < sums[1][1])


if __name__ == "__main__":
    sys.exit(main())
