"""python -m bench.looks [--steps N] [KIND ...]

What the looks at the inputs of softmax cost (src/standby/step_reach_torch.h), which bench.pieces does not see: they are
callbacks of each operator in single steps. A training with a cross-entropy is watched with its defaults. Each step that
was looked at is compared with the steps around it; the difference, spread over the 256 steps from one look to the next,
is the share. Prints a line for each training; exit code 1 where a share is above the bound."""

import argparse
import contextlib
import pathlib
import sqlite3
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FIRST_GAP, USUAL_GAP = 4, 256  # steps, of src/standby/step_reach_torch.cpp
AROUND = 8  # steps on each side of a look that it is compared with
BOUND = 0.002


def looked_at(steps):
    """The indices of the steps that are looked at in a training with a softmax, by the rule of step_reach_torch.h."""
    found, gap = [], FIRST_GAP
    at = gap
    while at < steps:
        found.append(at)
        gap = min(2 * gap, USUAL_GAP)
        at += gap + 1  # the look itself does not count
    return found


def stored_looks(folder):
    """(largest step, number) of the points with a value of the looks, as store.sqlite has them."""
    (path,) = pathlib.Path(folder).glob("*/store.sqlite")
    query = (
        "SELECT max(last_step), count(*) FROM point JOIN series ON series.id = point.series "
        "WHERE quantity = 'logits_absmax' AND point.max IS NOT NULL"
    )
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return store.execute(query).fetchone()


def times_of(kind, steps):
    """Seconds of each step, watched."""
    import torch
    from bench.overhead import models

    import finitude

    torch.set_num_threads(1)
    job = models.Job(kind, "adamw", loader=False)
    took = []
    with tempfile.TemporaryDirectory() as folder:
        with finitude.watch(job.model, job.optimizer, runs=folder):
            for step in range(steps):
                x, y = job.batches[step % len(job.batches)]
                began = time.perf_counter()
                job.optimizer.zero_grad()
                job.loss_of(job.model, x, y).backward()
                job.optimizer.step()
                took.append(time.perf_counter() - began)
        if not stored_looks(folder)[1]:
            raise SystemExit(f"{kind}: no step was looked at")
    return took


def share_of(took):
    """(median seconds of a step, median seconds that a look adds, their share of the time, looks)."""
    looks = looked_at(len(took))
    known = set(looks)
    extra = []
    for at in looks:
        others = [took[i] for i in range(max(0, at - AROUND), min(len(took), at + AROUND + 1)) if i not in known]
        extra.append(took[at] - statistics.median(others))
    usual, added = statistics.median(took), statistics.median(extra)
    return usual, added, max(0.0, added) / USUAL_GAP / usual, len(looks)


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.looks")
    parser.add_argument("kinds", nargs="*", default=["mlp", "gpt-toy"])
    parser.add_argument("--steps", type=int, default=4000)
    asked = parser.parse_args()
    worst = 0.0
    for kind in asked.kinds:
        usual, added, share, looks = share_of(times_of(kind, asked.steps))
        worst = max(worst, share)
        print(
            f"{kind:10} step {usual * 1e3:.3f} ms, a look adds {added * 1e6:.0f} us (median of {looks}), "
            f"one in {USUAL_GAP} steps: {share:.3%} of the time (bound {BOUND:.1%})",
            flush=True,
        )
    return 1 if worst > BOUND else 0


if __name__ == "__main__":
    raise SystemExit(main())
