"""docs/overhead.md, from the results of the cells. Figures are computed here from what the workers timed; none is typed
in."""

from . import stats
from .cells import MODEL_TEXT, OPTIMIZER_TEXT
from .page_cells import OWN_HEAD, extra_rows, fixed_rows, gan_rows, memory_rows, own_section, piece_rows
from .page_compare import compare_rows, traced_verdicts
from .page_goals import cell_goals, fixed_goal, memory_goal, traced_goals
from .page_text import table
from .page_why import why_missed, why_traced

INTRODUCTION = """# What watching costs

One training step with finitude on, against the same step without it, in the same process, and against what one would use
instead. Written by `make bench-overhead`; every figure below is computed from that run. Where the time goes piece by piece
is in [overhead-pieces](overhead-pieces.md).

{machine}
{mode}

**How it is measured.** Each cell is a process of its own with an ordinary loop over a DataLoader inside a function. In a
round every arm has one stretch of steps, in random order: off, off once more, on, and others where named. *Off* means that
every attribute of torch is again the object that it was; the harness checks that after each switch. The pairs are on/off of
the same round; a figure is the median of the pairs' ratios, in brackets its 95 % bootstrap interval. *Control* is off
against off: the noise. CPU is the time of the training thread, wall is time. Freed memory is kept by the process (malloc's
environment variables): steps are faster then, and every overhead looks larger, not smaller.

**By pieces** is the other way of asking: the time stamp counter is read where our code begins and ends, inside the real
steps, without the calls into torch; what the reading itself takes is subtracted, and what torch's Python spends on
reaching our functions is added from a loop of its own. Pairs of steps that take milliseconds carry about a per cent of noise, pieces
do not, so the figure is the pieces', and the pairs check it: a cell *holds* only if the pairs' upper bound stays within
{points} points of it. Where noise leaves more room, it is *undecided*.
"""


def write(results, failed, names, facts, mode):
    """(the page, what was not reached). `names`: the cells of this mode, of which some may have failed. `facts`: the
    lines of machine.py as they were when it was measured."""
    out = [
        INTRODUCTION.format(
            machine="\n".join(facts),
            points=f"{stats.CHECK_POINTS:g}",
            mode="- mode: quick, some of the cells, with wide intervals" if mode == "quick" else "- mode: full",
        )
    ]
    own = {threads: own_section(results, threads) for threads in (1, 2)}
    cells = own[1] + own[2]
    fixed, fixed_missed = fixed_rows(results)
    memory, memory_missed = memory_rows(results)
    compare = {threads: compare_rows(results, threads) for threads in (1, 2)}
    columns = compare[1][3] + compare[2][3]
    traced = traced_verdicts(columns)
    goals, missed = [], []
    for more, not_reached in (
        cell_goals(cells),
        fixed_goal(fixed, fixed_missed),
        memory_goal(memory, memory_missed),
        traced_goals(traced),
    ):
        goals += more
        missed += not_reached
    out += ["## What had to hold", ""]
    out += table(("goal", "found", "verdict"), goals)
    for threads in (1, 2):
        if own[threads]:
            out += [f"## finitude on, {threads} thread{'s' if threads > 1 else ''}", ""]
            out += table(OWN_HEAD, [c.row() for c in own[threads]])
            few = [c for c in own[threads] if c.few_rows and c.all is not None]
            out += [
                f"Few rows per weight ({MODEL_TEXT[c.spec['kind']]}, "
                f"{OPTIMIZER_TEXT[c.spec['optimizer']]}): {c.bytes_text()}."
                for c in few
            ] + ([""] if few else [])
    if fixed:
        out += [
            "## The fixed cost",
            "",
            "A step so small that nothing else shows: 4 parameters, microseconds of CPU time per step.",
            "",
        ]
        out += table(
            (
                "batches from",
                "step, us",
                "gate, by pieces",
                "gate, pairs",
                "goal 4 us",
                "all, by pieces",
                "all, pairs",
                "goal 8 us",
                "control",
            ),
            fixed,
        )
    head, rows = piece_rows(results)
    if rows:
        out += [
            "## The pieces in place",
            "",
            "Nanoseconds per step of AdamW foreach, one thread, inside real steps: caches as the step leaves them.",
            "",
        ]
        out += table(head, rows)
    for threads in (1, 2):
        head, rows, notes, of_threads = compare[threads]
        if of_threads:
            out += [f"## Beside what others use, {threads} thread{'s' if threads > 1 else ''}", ""] + table(head, rows)
            out += [f"Not measured: {note}." for note in notes] + ([""] if notes else [])
    head, rows = extra_rows(results)
    if rows:
        out += ["## What costs more, where it is asked for", ""] + table(head, rows)
    head, rows = gan_rows(results)
    if rows:
        out += [
            "## Two optimizers in one iteration",
            "",
            "For a jump ([limits](limits.md)) an optimizer that steps behind another one "
            "is copied before, parameters and state, while that costs at most 1 % of the time: the "
            "third column is what it "
            "costs, the fourth whether they are taken.",
            "",
        ] + table(head, rows)
    if memory:
        out += [
            "## Memory",
            "",
            "The most that a process held, in MB, over the same steps with and without. Nothing can start this program "
            "again, as it calls `finitude.watch`: so its first step is recorded as it runs, which is most of it. "
            "`finitude run` records no step ahead.",
            "",
        ]
        out += table(("model", "without", "with", "more", "goal 64 MB"), memory)
    absent = [n for n in names if n not in results and n not in failed]
    for name, why in sorted(failed.items()):
        out.append(f"Cell {name} failed: {why}")
        missed.append(f"{name} failed: {why}")
    why = why_missed(cells, fixed_missed, results)
    traced_why = why_traced(traced, columns)
    out += why + ((["## Why not", ""] if not why else []) + traced_why if traced_why else [])
    if absent:
        out.append(f"Not measured in this run: {', '.join(absent)}.")
    switched_off = [
        n
        for n, r in results.items()
        if (r.get("watched") or {}).get("failure") or (r.get("watched") or {}).get("alarms")
    ]
    if switched_off:
        out.append(
            f"Switched itself off or alarmed, so that its figures mean nothing: {', '.join(sorted(switched_off))}."
        )
        missed.append("not watching healthily in " + ", ".join(sorted(switched_off)))
    if missed:
        out += ["## Not reached", "", *(f"- {line}" for line in missed), ""]
    return "\n".join(out).rstrip() + "\n", missed
