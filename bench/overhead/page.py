"""docs/overhead.md, from the results of the cells. Figures are computed here from what the workers timed; none is typed
in."""

import statistics

from . import stats
from .cells import MODEL_TEXT, OPTIMIZER_TEXT, ROWS

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


def _percent(e, digits=2):
    return "-" if e is None else f"{e.value:.{digits}f}"


def _interval(e, digits=1):
    return "-" if e is None else f"{e.value:+.{digits}f} [{e.low:+.{digits}f}, {e.high:+.{digits}f}]"


def _table(head, rows):
    if not rows:
        return ["(not measured)", ""]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in rows), ""]


def _as_percent(ratio):
    return None if ratio is None else ratio.scaled(100, -100)


def _paired(result, arm, over="off", clock="cpu"):
    times = result[clock]
    return _as_percent(stats.pair_ratio(times[arm], times[over])) if arm in times else None


class Own:
    """The figures of one cell with finitude on."""

    def __init__(self, result):
        self.result, self.spec = result, result["spec"]
        self.step_ns = statistics.median(result["cpu"]["off"])
        over = 100 / self.step_ns
        part = lambda pieces: (e := stats.in_place(result, pieces)) and e.scaled(over)  # noqa: E731
        self.gate, self.all = part(stats.GATE), part(stats.GATE + stats.REWIND + stats.OTHER)
        self.paired, self.wall, self.control = (
            _paired(result, "on"),
            _paired(result, "on", clock="wall"),
            _paired(result, "control"),
        )
        rows = 10**9 if self.spec.get("half") or self.spec.get("undo_mb") else ROWS[self.spec["kind"]]
        self.few_rows = rows < stats.FEW_ROWS and "fused" in self.spec["optimizer"]
        plain = not (self.spec.get("half") or self.spec.get("undo_mb"))
        self.limit = stats.limit_of(self.step_ns, rows, "fused" in self.spec["optimizer"]) if plain else None
        self.verdict = stats.judge(self.all, self.paired, self.limit)

    def bytes_text(self):
        """What the exception is explained by: the time that reading the gradients takes, as a rate."""
        read = stats.in_place(self.result, ("gradients",))
        rate = self.result["gradient_bytes"] / read.value
        return (
            f"{self.result['gradient_bytes'] / 1e6:.1f} MB of gradients read at {rate:.0f} GB/s are "
            f"{100 * read.value / self.step_ns:.2f} % of a step of {self.step_ns / 1e6:.2f} ms"
        )

    def row(self):
        return [
            MODEL_TEXT[self.spec["kind"]],
            OPTIMIZER_TEXT[self.spec["optimizer"]],
            f"{self.step_ns / 1e6:.3g}",
            f"{self.result['gradient_bytes'] / 1e6:.2g}",
            _percent(self.gate),
            _percent(self.all),
            _interval(self.paired),
            _interval(self.wall),
            _interval(self.control),
            self.verdict + (" (2 %)" if self.limit == 2.0 else ""),
        ]


OWN_HEAD = (
    "model",
    "optimizer",
    "step, ms",
    "gradients, MB",
    "gate %, by pieces",
    "all %, by pieces",
    "all %, pairs, CPU",
    "pairs, wall",
    "control",
    "verdict",
)


def _order(result):
    spec = result["spec"]
    return (list(ROWS).index(spec["kind"]), list(OPTIMIZER_TEXT).index(spec["optimizer"]))


def _own_section(results, threads):
    found = sorted(
        (r for n, r in results.items() if n.startswith("own-") and r["spec"]["threads"] == threads), key=_order
    )
    return [Own(r) for r in found]


def _fixed_rows(results):
    rows, verdicts = [], []
    for name, text in (("tiny-list", "a list of batches"), ("tiny-loader", "a DataLoader")):
        if name not in results:
            continue
        r = results[name]
        step = statistics.median(r["cpu"]["off"])
        gate, everything = stats.in_place(r, stats.GATE), stats.in_place(r, stats.GATE + stats.REWIND)
        us = lambda e: "-" if e is None else (f"{e.value / 1e3:+.1f} [{e.low / 1e3:+.1f}, {e.high / 1e3:+.1f}]")  # noqa: E731
        difference = lambda arm: us(stats.pair_difference(r["cpu"][arm], r["cpu"]["off"]) if arm in r["cpu"] else None)  # noqa: E731
        said = []
        for figure, arm, limit, what in (
            (gate, "gate", stats.GATE_US, "gate"),
            (everything, "on", stats.REWIND_US, "with rewind"),
        ):
            if figure is None or arm not in r["cpu"]:
                said.append("undecided")
                continue
            scale = 100 / step
            verdict = stats.judge(figure.scaled(scale), _paired(r, arm), 100 * limit * 1e3 / step)
            said.append(verdict)
            if verdict != "holds":
                verdicts.append(f"fixed cost, {text}, {what}: {verdict} ({figure.value / 1e3:.1f} us, goal {limit:g})")
        rows.append(
            [
                text,
                f"{step / 1e3:.0f}",
                "-" if gate is None else f"{gate.value / 1e3:.2f}",
                difference("gate"),
                said[0],
                "-" if everything is None else f"{everything.value / 1e3:.2f}",
                difference("on"),
                said[1],
                difference("control"),
            ]
        )
    return rows, verdicts


def _piece_rows(results):
    rows = []
    order = [("tiny-list", "tiny, list"), ("tiny-loader", "tiny, DataLoader")] + [
        (f"own-{kind}-adamw-1", MODEL_TEXT[kind]) for kind in ROWS if kind != "tiny"
    ]
    for name, text in order:
        if name not in results or not results[name].get("pieces"):
            continue
        r = results[name]
        cells = []
        for piece in stats.GATE + stats.REWIND:
            e = stats.median_of(one[piece][0] for one in r["pieces"])
            cells.append(f"{e.value:.0f}" if e.value < 10000 else f"{e.value / 1e3:.0f}k")
        reach = sum(r["call_through"][k] for k in ("hook", "backward")) + (
            r["call_through"]["loader"] if r["spec"].get("loader", True) else 0
        )
        rows.append([text, f"{reach:.0f}", *cells])
    return ("step of", "reached from torch", *stats.GATE, *stats.REWIND), rows


def _compare_rows(results, threads):
    columns = sorted(
        (r for n, r in results.items() if n.startswith("compare-") and r["spec"]["threads"] == threads), key=_order
    )
    names = [
        ("on", "**finitude**"),
        ("loss-check", "loss check, `isfinite(loss).item()`"),
        ("error-if-nonfinite", "`clip_grad_norm_(error_if_nonfinite=True)`"),
        ("isfinite-loop", "`isfinite(p.grad).all()` per parameter"),
        ("capture", "gradient check with capture (NaNCapture)"),
        ("forward-hooks", "forward-hook detector"),
        ("anomaly", "`set_detect_anomaly(True)`"),
        ("every-op", "TorchDispatchMode, every op"),
        ("underflow-overflow", "transformers DebugUnderflowOverflow"),
        ("msprobe", "msprobe statistics L1 (not interleaved)"),
        ("tape", "finitude `--level tape`"),
        ("tape-every", "finitude `--tape-every 10`"),
        ("trace", "finitude `--level trace`"),
        ("armed", "finitude, an armed step"),
        ("control", "control (nothing)"),
    ]
    alone = {}
    for name, r in results.items():
        if name.startswith("alone-") and threads == 1:
            alone.setdefault((r["spec"]["contender"], r["spec"]["kind"]), []).append(r)
    rows, notes = [], []
    for arm, text in names:
        cells = []
        for r in columns:
            if arm in r["cpu"]:
                e = stats.pair_ratio(r["cpu"][arm], r["cpu"]["off"])
                cells.append(f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]")
            elif found := alone.get((arm, r["spec"]["kind"])):
                ratios = [
                    statistics.median(x["cpu"][arm]) / statistics.median(x["cpu"]["off"])
                    for x in found
                    if arm in x["cpu"]
                ]
                notes += [why for x in found for why in x["missing"].values()]
                cells.append(", ".join(f"{x:.2f}" for x in ratios) or "-")
            else:
                cells.append("-")
                if arm in r.get("missing", {}):
                    notes.append(r["missing"][arm])
        if any(c != "-" for c in cells) or arm in ("underflow-overflow", "msprobe"):
            rows.append([text, *cells])
    head = ("CPU time of a step, times the one without", *(MODEL_TEXT[r["spec"]["kind"]] for r in columns))
    return head, rows if columns else [], sorted(set(notes)), columns


def _traced_verdicts(columns):
    out = []
    for r in columns:
        for arm in ("trace", "armed"):
            e = stats.pair_ratio(r["cpu"][arm], r["cpu"]["off"])
            state = "holds" if e.high <= stats.TRACED else "missed" if e.low > stats.TRACED else "undecided"
            out.append((MODEL_TEXT[r["spec"]["kind"]], r["spec"]["threads"], arm, e, state))
    return out


def _why_traced(traced, columns):
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
    ] + _table(
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


def _why(cells, fixed, results):
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
    out += _table(("model", "optimizer", "threads", "one read of the gradients", "%", "all else", "%", "goal, %"), rows)
    return [*out, "", TRIED, ""]


def _extra_rows(results):
    rows = []
    for name, text in (
        ("half-mlp", "bfloat16 parameters: all that the optimizer wrote is read"),
        ("half-gpt-toy", "bfloat16 parameters: all that the optimizer wrote is read"),
        ("undo-mlp", "`--undo-mb`: the copy, and all that was written is read"),
        ("undo-gpt-toy", "`--undo-mb`: the copy, and all that was written is read"),
    ):
        if name in results:
            own = Own(results[name])
            part = {p: stats.in_place(own.result, (p,)) for p in ("written", "undo")}
            cell = lambda e: "-" if e is None else f"{100 * e.value / own.step_ns:.2f}"  # noqa: E731
            rows.append(
                [
                    MODEL_TEXT[own.spec["kind"]],
                    text,
                    f"{own.step_ns / 1e6:.3g}",
                    cell(part["written"]),
                    cell(part["undo"]),
                    _percent(own.all),
                    _interval(own.paired),
                    _interval(own.control),
                ]
            )
    return (
        "model",
        "what",
        "step, ms",
        "reading it, %",
        "copy, %",
        "all %, by pieces",
        "all %, pairs, CPU",
        "control",
    ), rows


def _gan_rows(results):
    rows = []
    for name, text in (
        ("gan-alternating", "D steps, then G's loss, G steps"),
        ("gan-joint", "both losses, then D and G step"),
    ):
        if name not in results:
            continue
        r = results[name]
        step = statistics.median(r["cpu"]["off"])
        copy = stats.in_place({**r, "pieces": r["copy_pieces"]}, ("undo",)) if r.get("copy_pieces") else None
        everything = stats.in_place(r, stats.GATE + stats.REWIND + stats.OTHER)
        share = lambda e: "-" if e is None else f"{100 * e.value / step:.2f}"  # noqa: E731
        rows.append(
            [
                text,
                f"{step / 1e6:.3g}",
                share(copy),
                "no" if r["refused"] else "yes",
                share(everything),
                _interval(_paired(r, "on")),
                _interval(_paired(r, "copies")),
                _interval(_paired(r, "control")),
            ]
        )
    return (
        "a DCGAN for 32 x 32, b32, 1 thread",
        "iteration, ms",
        "copies, %",
        "taken",
        "all %, by pieces",
        "all %, pairs, CPU",
        "with the copies, pairs",
        "control",
    ), rows


def _memory_rows(results):
    rows, missed = [], []
    for kind in ROWS:
        off, on = results.get(f"memory-{kind}-off"), results.get(f"memory-{kind}-on")
        if off and on:
            more = on["peak_mb"] - off["peak_mb"]
            verdict = "holds" if more <= stats.MEMORY_MB else "missed"
            rows.append([MODEL_TEXT[kind], f"{off['peak_mb']:.0f}", f"{on['peak_mb']:.0f}", f"{more:+.0f}", verdict])
            if verdict != "holds":
                missed.append(f"memory of {kind}: {more:.0f} MB more, goal {stats.MEMORY_MB}")
    return rows, missed


def write(results, failed, names, facts, mode):
    """(the page, what was not reached). `names`: the cells of this mode, of which some may have failed. `facts`: the
    lines of machine.py as they were when it was measured."""
    missed = []
    out = [
        INTRODUCTION.format(
            machine="\n".join(facts),
            points=f"{stats.CHECK_POINTS:g}",
            mode="- mode: quick, some of the cells, with wide intervals" if mode == "quick" else "- mode: full",
        )
    ]
    own = {threads: _own_section(results, threads) for threads in (1, 2)}
    cells = own[1] + own[2]
    decided = [c for c in cells if c.all is not None]
    out += ["## What had to hold", ""]
    goals = []
    if decided:
        middle = statistics.median(c.all.value for c in decided)
        state = "holds" if middle <= stats.MEDIAN_PERCENT else "missed"
        goals.append(
            [f"median over the table, by pieces, at most {stats.MEDIAN_PERCENT:g} %", f"{middle:.2f} %", state]
        )
        if state != "holds":
            missed.append(f"median over the table: {middle:.2f} %, goal {stats.MEDIAN_PERCENT:g}")
        counted = [c for c in decided if c.limit is not None]
        said = {v: sum(c.verdict == v for c in counted) for v in ("holds", "missed", "undecided")}
        worst = max(counted, key=lambda c: c.all.value / c.limit, default=None)
        if worst is not None:
            goals.append(
                [
                    f"each step over 1 ms at most {stats.CELL_PERCENT:g} % "
                    f"({stats.FEW_ROWS_PERCENT:g} % with fewer than "
                    f"{stats.FEW_ROWS} rows per weight and a fused optimizer), and the pairs agree",
                    f"{said['holds']} hold, {said['missed']} missed, {said['undecided']} undecided; "
                    f"largest {worst.all.value:.2f} % "
                    f"({MODEL_TEXT[worst.spec['kind']]}, {OPTIMIZER_TEXT[worst.spec['optimizer']]}, "
                    f"{worst.spec['threads']} threads)",
                    "missed" if said["missed"] else "undecided" if said["undecided"] else "holds",
                ]
            )
        for c in counted:
            if c.verdict != "holds":
                missed.append(
                    f"{c.spec['kind']} {c.spec['optimizer']} {c.spec['threads']} threads: {c.verdict} (pieces "
                    f"{c.all.value:.2f} %, pairs {_interval(c.paired)}, control {_interval(c.control)})"
                )
    fixed, fixed_missed = _fixed_rows(results)
    if fixed:
        goals.append(
            [
                f"fixed cost at most {stats.GATE_US:g} us for the gate, {stats.REWIND_US:g} us with "
                "what a rewind needs",
                "; ".join(f"{r[2]} and {r[5]} us ({r[0]})" for r in fixed),
                "holds"
                if not fixed_missed
                else "undecided"
                if not any("missed" in m for m in fixed_missed)
                else "missed",
            ]
        )
    missed += fixed_missed
    memory_rows, memory_missed = _memory_rows(results)
    if memory_rows:
        goals.append(
            [
                f"memory at most {stats.MEMORY_MB} MB",
                f"largest {max((r[3] for r in memory_rows), key=float)} MB",
                "missed" if memory_missed else "holds",
            ]
        )
    missed += memory_missed
    compare = {threads: _compare_rows(results, threads) for threads in (1, 2)}
    traced = _traced_verdicts(compare[1][3] + compare[2][3])
    for arm, text in (("trace", "`--level trace`"), ("armed", "an armed step")):
        of_arm = [t for t in traced if t[2] == arm]
        if of_arm:
            states = {t[4] for t in of_arm}
            goals.append(
                [
                    f"{text} at most {stats.TRACED:g} times a step",
                    f"{min(t[3].value for t in of_arm):.2f} to {max(t[3].value for t in of_arm):.2f}",
                    "missed" if "missed" in states else "undecided" if "undecided" in states else "holds",
                ]
            )
            missed += [
                f"{text}, {t[0]}, {t[1]} threads: {t[4]} ({t[3].value:.2f} [{t[3].low:.2f}, {t[3].high:.2f}])"
                for t in of_arm
                if t[4] != "holds"
            ]
    out += _table(("goal", "found", "verdict"), goals)
    for threads in (1, 2):
        if own[threads]:
            out += [f"## finitude on, {threads} thread{'s' if threads > 1 else ''}", ""]
            out += _table(OWN_HEAD, [c.row() for c in own[threads]])
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
        out += _table(
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
    head, rows = _piece_rows(results)
    if rows:
        out += [
            "## The pieces in place",
            "",
            "Nanoseconds per step of AdamW foreach, one thread, inside real steps: caches as the step leaves them.",
            "",
        ]
        out += _table(head, rows)
    for threads in (1, 2):
        head, rows, notes, columns = compare[threads]
        if columns:
            out += [f"## Beside what others use, {threads} thread{'s' if threads > 1 else ''}", ""] + _table(head, rows)
            out += [f"Not measured: {note}." for note in notes] + ([""] if notes else [])
    head, rows = _extra_rows(results)
    if rows:
        out += ["## What costs more, where it is asked for", ""] + _table(head, rows)
    head, rows = _gan_rows(results)
    if rows:
        out += [
            "## Two optimizers in one iteration",
            "",
            "For a jump ([limits](limits.md)) an optimizer that steps behind another one "
            "is copied before, parameters and state, while that costs at most 1 % of the time: the "
            "third column is what it "
            "costs, the fourth whether they are taken.",
            "",
        ] + _table(head, rows)
    if memory_rows:
        out += ["## Memory", "", "The most that a process held, in MB, over the same steps with and without.", ""]
        out += _table(("model", "without", "with", "more", "goal 64 MB"), memory_rows)
    absent = [n for n in names if n not in results and n not in failed]
    for name, why in sorted(failed.items()):
        out.append(f"Cell {name} failed: {why}")
        missed.append(f"{name} failed: {why}")
    why = _why(cells, fixed_missed, results)
    traced_why = _why_traced(traced, compare[1][3] + compare[2][3])
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
