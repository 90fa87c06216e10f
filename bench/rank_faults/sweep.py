"""Tries every fault of cases.py and writes docs/rank-faults.md.

python -m bench.rank_faults [WORDS]     only cases whose text has all of the words; nothing is written then"""

import collections
import concurrent.futures
import datetime
import multiprocessing
import os
import pathlib
import platform
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rank_faults import cases  # noqa: E402

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


def main(words):
    chosen = [case for case in cases.all_cases() if all(word in str(case) for word in words)]
    context = multiprocessing.get_context("spawn")
    plain = [cases.Case(s, p, "", "none", 0) for s, p in cases.TRAININGS if p == "skip"]
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
    if not words:
        (ROOT / "docs" / "rank-faults.md").write_text(page(results))
    return 1 if failed else 0


def page(results):
    import torch

    cells = collections.defaultdict(list)
    for case, _, reached, bad, _, _ in results:
        cells[case.strategy, case.policy, case.phase].append((reached, bad))
    lines = [f"| {' | '.join(['training', *cases.PHASES])} |", "|---" * (len(cases.PHASES) + 1) + "|"]
    for strategy, policy in cases.TRAININGS:
        row = [f"{strategy}, `{policy}`"]
        for phase in cases.PHASES:
            tried = [bad for reached, bad in cells[strategy, policy, phase] if reached]
            row.append(f"{sum(not bad for bad in tried)} of {len(tried)}" if tried else "")
        lines.append(f"| {' | '.join(row)} |")
    reached = [r for r in results if r[2]]
    wrong = [f"- {r[0]}: {'; '.join(r[3])}" for r in results if r[3]]
    slowest = max((r[1] for r in results), default=0.0)
    where = f"{os.cpu_count()} cores of {platform.machine()}, torch {torch.__version__}, {datetime.date.today()}"
    return HEAD.format(
        tried=len(results), reached=len(reached), good=sum(not r[3] for r in reached), slowest=slowest, where=where
    ) + "\n".join([*lines, "", *(["What does not hold:", "", *wrong] if wrong else ["Everything held."]), ""])


HEAD = """# Faults of ranks

Written by `make test-ranks` (`python -m bench.rank_faults`; {where}).

Two ranks of one training share a bad step, and one more fault comes to one of them, in one of the phases of what they do
about it: `kill -9`, SIGSTOP for longer than the time limits, an exception, `sys.exit(0)`, `os._exit(0)`, a disk that is
full (no file can grow), a rank that is late. `join` has uneven inputs (`Join`). Nobody ends a rank where the other one
fails. Limits are those of the product made small (`bench/rank_faults/points.py`). A fault is in the table where its
phase came, on that rank.

Counted is a run that ended within 60 s, in which each rank that was alive reported the bad step, the killed one was
reported as killed, no birth was named that was not one, and ranks that both continued had the weights of a run without
the fault.

{tried} faults were tried, {reached} came, {good} of them ended so. The slowest run took {slowest:.0f} s.

"""
