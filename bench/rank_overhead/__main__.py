"""python -m bench.rank_overhead [--pairs N] [--steps N] [--strategy ddp|fsdp2] [--on-alarm stop|skip]

What watching costs a training of two ranks, by gloo on this machine. Each pair is the training alone and under
`finitude run`, one after the other; every second pair begins with the watched one. Of a training the median step counts,
of all pairs the median ratio, with its quartiles. Needs an idle machine of two cores."""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TRAINING = pathlib.Path(__file__).with_name("training.py")
STRATEGIES, POLICIES = ("ddp", "fsdp2"), ("stop", "skip")
LIMIT = 600  # seconds for one training


def median_step(folder, strategy, steps, policy):
    """Seconds, as rank 0 of the training measured it. policy: "" for the training alone."""
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    watched = ("-m", "finitude", "run", "--quiet", "--on-alarm", policy, sys.executable) if policy else ()
    words = sys.executable, *watched, *torchrun, str(TRAINING), strategy, str(steps)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT)
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("median ")]
    if done.returncode or len(found) != 1:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return float(found[0])


def of_pairs(count, measure):
    """The ratios of `count` pairs, and the median step alone. measure: of a watched training, or of one alone."""
    ratios, alone = [], []
    for number in range(count):
        is_first = number % 2 == 1  # the watched one
        took = {is_watched: measure(is_watched) for is_watched in (is_first, not is_first)}
        plain, watched = took[False], took[True]
        ratios.append(watched / plain)
        alone.append(plain)
    return ratios, statistics.median(alone)


def line_of(strategy, policy, ratios, alone):
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    cost = ", ".join(f"{100 * (one - 1):+.2f} %" for one in (low, high))
    return (
        f"{strategy}, {policy}: {100 * (middle - 1):+.2f} % (quartiles {cost}) of {1e3 * alone:.2f} ms a step, "
        f"{len(ratios)} pairs"
    )


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", type=int, default=12)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--strategy", choices=STRATEGIES, action="append")
    options.add_argument("--on-alarm", choices=POLICIES, action="append")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for strategy in given.strategy or STRATEGIES:
            for policy in given.on_alarm or POLICIES:
                ratios, alone = of_pairs(
                    given.pairs,
                    lambda watched, s=strategy, p=policy: median_step(folder, s, given.steps, p if watched else ""),
                )
                print(line_of(strategy, policy, ratios, alone), flush=True)


if __name__ == "__main__":
    main()
