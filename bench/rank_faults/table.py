"""docs/rank-faults.md: written whole, or some of its cells again.

A result is (case, seconds, did its phase come, what does not hold, text, weights), as sweep.py has it. A cell is one
training, policy and phase."""

import collections
import datetime
import os
import platform
import re

from bench.rank_faults import cases


def _cell(case):
    return case.strategy, case.policy, case.phase


def are_whole_cells(chosen):
    """Is each cell of these cases chosen with all of its cases?"""
    wanted = {_cell(case) for case in chosen}
    return bool(chosen) and len(chosen) == sum(_cell(case) in wanted for case in cases.all_cases())


def _counts(results):
    """{cell: (how many ended as they should, how many came)}"""
    found = collections.defaultdict(lambda: (0, 0))
    for case, _, reached, bad, _, _ in results:
        good, came = found[_cell(case)]
        found[_cell(case)] = good + (reached and not bad), came + reached
    return dict(found)


def _wrong(results):
    return [f"- {r[0]}: {'; '.join(r[3])}" for r in results if r[3]]


def _slowest(results):
    return max((r[1] for r in results), default=0.0)


def _where():
    import torch

    return f"{os.cpu_count()} cores of {platform.machine()}, torch {torch.__version__}, {datetime.date.today()}"


def page(results):
    return _text(_counts(results), _wrong(results), _slowest(results), len(results), _where(), "")


def merged(before, results):
    """The page `before` with these cells in the place of what it says of them."""
    counts, new = _read(before), _counts(results)
    counts.update(new)
    starts = tuple(f"- {strategy} {policy}, {phase}: " for strategy, policy, phase in new)
    kept = [line for line in before.splitlines() if line.startswith("- ") and not line.startswith(starts)]
    numbers = re.search(r"^(\d+) faults were tried.* took (\d+) s", before, re.MULTILINE)
    written = re.search(r"\(`python -m bench.rank_faults`; (.*?)\)\.(.*)", before)
    if numbers is None or written is None:
        raise ValueError("the page has another form")
    names = ", ".join(f"{strategy} `{policy}` {phase}" for strategy, policy, phase in new)
    again = f"{written[2]} Again by `--merge` ({_where()}): {names}."
    slowest = max(float(numbers[2]), _slowest(results))
    return _text(counts, kept + _wrong(results), slowest, int(numbers[1]), written[1], again)


def _read(text):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    found = {}
    for row in rows:
        name = re.fullmatch(r"(\w+), `(\w+)`", row[0])
        for phase, cell in zip(cases.PHASES, row[1:]) if name else ():
            if number := re.fullmatch(r"(\d+) of (\d+)", cell):
                found[name[1], name[2], phase] = int(number[1]), int(number[2])
    return found


def _text(counts, wrong, slowest, tried, where, again):
    lines = [f"| {' | '.join(['training', *cases.PHASES])} |", "|---" * (len(cases.PHASES) + 1) + "|"]
    for strategy, policy in cases.TRAININGS:
        row = [f"{strategy}, `{policy}`"]
        for phase in cases.PHASES:
            good, came = counts.get((strategy, policy, phase), (0, 0))
            row.append(f"{good} of {came}" if came else "")
        lines.append(f"| {' | '.join(row)} |")
    good, reached = (sum(one[i] for one in counts.values()) for i in (0, 1))
    return HEAD.format(tried=tried, reached=reached, good=good, slowest=slowest, where=where, again=again) + "\n".join(
        [*lines, "", *(["What does not hold:", "", *wrong] if wrong else ["Everything held."]), ""]
    )


HEAD = """# Faults of ranks

Written by `make test-ranks` (`python -m bench.rank_faults`; {where}).{again}

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
