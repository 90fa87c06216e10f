"""Runs births drawn with a seed, each in a training of its own, and writes docs/rank-births.md.

python -m bench.rank_births [--count N] [--seed S] [WORDS]
WORDS: only cases whose text has all of them; nothing is written then."""

import argparse
import concurrent.futures
import datetime
import os
import pathlib
import platform
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rank_births import cases  # noqa: E402

WORKERS, LIMIT_S = 2, 240
PAGE = ROOT / "docs" / "rank-births.md"


def run(case, is_cold=True):
    """(case, seconds, what does not hold, all that was printed). is_cold: ranks are interpreters of their own."""
    import process_support

    with tempfile.TemporaryDirectory(prefix="rank-birth-") as folder:
        folder = pathlib.Path(folder)
        start = process_support.cold if is_cold else process_support.watched_ranks
        launcher = process_support.launcher(folder, case.ranks, is_cold)
        words = ["--on-alarm", case.policy, *launcher, str(cases.PROGRAM)]
        began = time.monotonic()
        try:
            got = start(folder, *words, env=case.environment(), limit=LIMIT_S)
        except AssertionError as e:
            return case, time.monotonic() - began, [f"did not end: {e}"], ""
        return case, time.monotonic() - began, cases.wrong(case, got.alarms), got.text()


def table(results):
    groups = tuple(dict.fromkeys(cases.GROUPS.values()))
    lines = [f"| training | {' | '.join(groups)} |", "|---" * (len(groups) + 1) + "|"]
    for strategy in cases.STRATEGIES:
        row = [strategy]
        for group in groups:
            own = [r for r in results if r[0].strategy == strategy and cases.GROUPS[r[0].kind] == group]
            row.append(f"{sum(not r[2] for r in own)} of {len(own)}" if own else "")
        lines.append(f"| {' | '.join(row)} |")
    wrong = [f"- {case}: {'; '.join(bad)}" for case, _, bad, _ in results if bad]
    return "\n".join([*lines, "", *(["What does not hold:", "", *wrong] if wrong else ["Everything held."]), ""])


def page(results, seed):
    import torch

    where = f"{os.cpu_count()} cores of {platform.machine()}, torch {torch.__version__}, {datetime.date.today()}"
    return HEAD.format(
        command=f"python -m bench.rank_births --count {len(results)} --seed {seed}",
        where=where,
        count=len(results),
        good=sum(not r[2] for r in results),
        steps=sum(not any("step" in text for text in r[2]) for r in results),
        kinds=", ".join(cases.KINDS),
    ) + table(results)


HEAD = """# Births on ranks

Written by `make test-ranks` (`{command}`; {where}).

In one step of a training a bad value is born on one rank of two (one case of ten: of four), in a case drawn with a seed: training, kind, rank,
step, micro-batch, and `--on-alarm stop` or `skip`. Kinds: {kinds} (`bench/rank_births/program.py`).

Counted is a report that names the rank and the line of the birth first, calls no operation of another rank a birth, and has
alarms of that step only, one of each rank. Under `stop` a rank that saw only finite values needs none. Trainings: DistributedDataParallel
(`ddp`), also with `no_sync` and two micro-batches, and with `ZeroRedundancyOptimizer`; FSDP1, FSDP2, HSDP; tensor parallel, sequence parallel,
a pipeline of two micro-batches, an expert of each rank with tokens exchanged.

{count} births were tried, {good} named in full; of {steps} all alarms were of the right step.

"""


def main(arguments):
    options = argparse.ArgumentParser(prog="bench.rank_births")
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("words", nargs="*")
    given = options.parse_args(arguments)
    chosen = [c for c in cases.drawn(given.count, given.seed) if all(word in str(c) for word in given.words)]
    results = []
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for result in pool.map(run, chosen):
            case, seconds, bad, text = result
            results.append(result)
            print(f"{seconds:5.1f} s  {case}  {'; '.join(bad)}", flush=True)
            if bad and given.words:
                print(text, flush=True)
    good = sum(not r[2] for r in results)
    print(f"{len(results)} births, {good} named in full")
    if not given.words:
        PAGE.write_text(page(results, given.seed))
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
