"""Tries every fault of cases.py and writes docs/rank-faults.md.

python -m bench.rank_faults [WORDS]           only cases whose text has all of the words; nothing is written then
python -m bench.rank_faults --merge WORDS     the same, and their cells of the table are written; whole cells only
python -m bench.rank_faults --seed N WORDS    with other weights and batches; nothing is written"""

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rank_faults import cases, table  # noqa: E402

WORKERS = 2
LIMIT_S = 60  # helpers.LIMIT: a run that has not ended by then is killed


def _run(case):
    import helpers

    with tempfile.TemporaryDirectory(prefix="rank-fault-") as folder:
        words = ["run", "--report", "report.json", "--on-alarm", case.policy, str(cases.PROGRAM)]
        began = time.monotonic()
        try:
            got = helpers.finitude(folder, *words, env=case.environment())
        except AssertionError as e:
            return case, time.monotonic() - began, True, [f"did not end: {e}"], "", {}
        seconds = time.monotonic() - began
        if case.kind == "none":
            return case, seconds, False, [], got.text(), cases.weights(got)
        bad = cases.wrong(case, got, _expected.get((case.strategy, case.policy)))
        return case, seconds, cases.was_reached(got), bad, got.text() if bad else "", cases.weights(got)


_expected: dict = {}


def _know(expected):
    _expected.update(expected)


def main(arguments):
    options = argparse.ArgumentParser(prog="bench.rank_faults")
    options.add_argument("--merge", action="store_true")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("words", nargs="*")
    given = options.parse_args(arguments)
    words = given.words
    chosen = [case for case in cases.all_cases() if all(word in str(case) for word in words)]
    if given.merge and (given.seed or not table.are_whole_cells(chosen)):
        options.error("--merge takes no --seed, and words that choose whole cells of the table")
    chosen = [dataclasses.replace(case, seed=given.seed) for case in chosen]
    context = multiprocessing.get_context("spawn")
    plain = [cases.Case(s, p, "", "none", 0, given.seed) for s, p in cases.TRAININGS if p == "skip"]
    if words:
        plain = [one for one in plain if any(one.strategy == case.strategy for case in chosen)]
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        healthy = list(pool.map(_run, plain))
    for case, seconds, _, bad, text, found in healthy:
        if len(found) != 2:
            sys.exit(f"{case}: not all ranks came to their end in {seconds:.0f} s: {bad} {text}")
    known = {(r[0].strategy, r[0].policy): r[5] for r in healthy}
    results = []
    with concurrent.futures.ProcessPoolExecutor(WORKERS, context, _know, (known,)) as pool:
        for result in pool.map(_run, chosen):
            case, seconds, reached, bad, text, _ = result
            results.append(result)
            print(f"{seconds:5.1f} s  {case}{'' if reached else ' (not reached)'}  {'; '.join(bad)}", flush=True)
            if bad and words:
                print(text, flush=True)
    failed = [r for r in results if r[3]]
    print(f"{len(results)} faults, {sum(r[2] for r in results)} reached, {len(failed)} with something wrong")
    page = ROOT / "docs" / "rank-faults.md"
    if given.merge:
        page.write_text(table.merged(page.read_text(), results))
    elif not words and not given.seed:
        page.write_text(table.page(results))
    return 1 if failed else 0
