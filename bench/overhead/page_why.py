"""What missed shares and times consist of."""

import statistics

from . import stats
from .cells import MODEL_TEXT, OPTIMIZER_TEXT
from .page_text import table


def why_traced(traced, columns):
    """What the traces beyond the goal read and copy, and how fast: beside the plain reads of kernels.md."""
    rows = []
    for kind, threads, arm, e, state in traced:
        r = next(r for r in columns if (MODEL_TEXT[r["spec"]["kind"]], r["spec"]["threads"]) == (kind, threads))
        if state == "holds" or arm not in r.get("effort", {}):
            continue
        ops, read, copied = r["effort"][arm]
        step = statistics.median(r["cpu"]["off"])
        more = statistics.median(r["cpu"][arm]) - step
        rows.append(
            [
                kind,
                str(threads),
                "`--level trace`" if arm == "trace" else "an armed step",
                f"{e.value:.2f}",
                f"{step / 1e6:.3g}",
                f"{more / 1e6:.3g}",
                f"{ops:.0f}",
                f"{read / 1e6:.0f}",
                f"{copied / 1e6:.0f}",
                f"{(read + 2 * copied) / more:.0f}",
            ]
        )
    if not rows:
        return []
    return [
        "A trace reads what each operation made, once, and copies what an operation is about to "
        "overwrite, unless the ranges of what "
        "it reads prove its result finite, so that it can be tried again if its result is bad. A "
        "step that does little work per byte (the optimizer's operations most of "
        "all: each reads and writes every parameter) pays for that with the same memory traffic once more. "
        "[kernels](kernels.md) has what this machine reads at best.",
        "",
    ] + table(
        (
            "model",
            "threads",
            "what",
            "times",
            "step, ms",
            "more, ms",
            "ops",
            "read, MB",
            "copied, MB",
            "GB/s (a copy counts twice)",
        ),
        rows,
    )


TRIED = (
    "**What was tried.** A snapshot of the stack that looks only at what has changed (kept, "
    "revision 7fab2fb), and asking memory four "
    "pages ahead in the quick scan (kept, revision d15a2e5); `make bench-pieces` and `make "
    "bench-sense` at these revisions and the ones "
    "before say what each is worth. The functions that a step runs lie together (kept: "
    "`tools/hot_functions.py --check` counts their pages). What is left is the number of cold "
    "pages: fewer would mean not to look at a gradient's header, a loss or a local "
    "name, and so to miss what was written there. Pairs of the tiny step show more than the pieces "
    "do: our code also pushes "
    "the program's jumps out of what the processor remembers "
    "([overhead-pieces](overhead-pieces.md#what-the-meter-does-not-see) has a "
    "measurement of that alone). Fetching ahead of time the lines of our code or of the snapshot's "
    "own state, and calls "
    "without the linker's table, made no difference above noise, and are not kept."
)


def why_missed(cells, fixed, results):
    """What the missed shares and times consist of, by the pieces."""
    cold = [r["cold_page_ns"] for n, r in results.items() if n.startswith("tiny-") and r.get("cold_page_ns")]
    missed = [c for c in cells if c.verdict == "missed" and c.all is not None]
    if not cold or not (missed or fixed):
        return []
    page_ns = statistics.median(cold)
    out = [
        "## Why not",
        "",
        "One load from a page of memory that nothing has touched since 64 MB of other memory went "
        f"by takes {page_ns:.0f} ns "
        "on this machine (cache and address translation both miss; `bench.pieces` measures it). "
        "That is what a training step "
        "leaves behind. [overhead-pieces](overhead-pieces.md) has the same code on warm caches beside it in place: "
        "what is below is mostly the number of places that have to be looked at: "
        "the parameters and their gradients' headers, the loss, the optimizer's groups, the user's "
        "local names, the batch, "
        "three random generators, and our own state.",
        "",
    ]
    rows = []
    for c in missed:
        read, rest = (
            stats.in_place(c.result, ("gradients",)),
            stats.in_place(c.result, tuple(p for p in stats.GATE + stats.REWIND if p != "gradients")),
        )
        share = 100 / c.step_ns
        rows.append(
            [
                MODEL_TEXT[c.spec["kind"]],
                OPTIMIZER_TEXT[c.spec["optimizer"]],
                str(c.spec["threads"]),
                f"{c.result['gradient_bytes'] / 1e6:.1f} MB in {read.value / 1e3:.0f} us, "
                f"{c.result['gradient_bytes'] / read.value:.0f} GB/s",
                f"{read.value * share:.2f}",
                f"{rest.value / 1e3:.0f} us, as {rest.value / page_ns:.0f} cold pages",
                f"{rest.value * share:.2f}",
                "-" if c.limit is None else f"{c.limit:g}",
            ]
        )
    out += table(("model", "optimizer", "threads", "one read of the gradients", "%", "all else", "%", "goal, %"), rows)
    return [*out, "", TRIED, ""]
