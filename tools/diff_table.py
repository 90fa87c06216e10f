"""Counts how often `finitude diff` names the right first divergence of seeded pairs (tests/diff_pairs.py).

python tools/diff_table.py [SEEDS] [FIRST]     prints a Markdown table: SEEDS networks a pair, seeds from FIRST on
"""

import json
import pathlib
import platform
import sys
import tempfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import diff_pairs  # noqa: E402
from finitude import _native  # noqa: E402


def truth_text(truth):
    if truth.kind == "quiet":
        return "no divergence"
    what = truth.op or ", ".join(truth.only_a + truth.only_b) or "optimizer step" * truth.anywhere
    return f"{truth.kind}: {truth.name or what}"


def main(seeds, first):
    torch.set_num_threads(1)
    print(f"{seeds} networks a pair, seeds from {first} on, torch {torch.__version__}, {platform.machine()}.\n")
    print("| B differs from A in | right is | right of " + str(seeds) + " | else |\n|---|---|---|---|")
    right = total = 0
    for name, (_, truth, _) in diff_pairs.PAIRS.items():
        faults = []
        for seed in range(first, first + seeds):
            with tempfile.TemporaryDirectory() as folder:
                a, b, before, program = diff_pairs.make(name, seed, pathlib.Path(folder), _native)
                _, why, document = _native.compare(a, b, ["aten"], 0, 1 << 30)
            fault = why or diff_pairs.wrong(name, json.loads(document), before, program)
            if fault:
                faults.append(f"seed {seed}: {fault}")
        right += seeds - len(faults)
        total += seeds
        print(f"| {name} | {truth_text(truth)} | {seeds - len(faults)} | {'; '.join(faults[:2])} |", flush=True)
    print(f"\n{right} of {total}.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
