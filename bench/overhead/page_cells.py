"""The tables of what finitude costs, by the results of its cells."""

import statistics

from . import stats
from .cells import MODEL_TEXT, OPTIMIZER_TEXT, ROWS
from .page_text import interval, order, paired, percent


class Own:
    """The figures of one cell with finitude on."""

    def __init__(self, result):
        self.result, self.spec = result, result["spec"]
        self.step_ns = statistics.median(result["cpu"]["off"])
        over = 100 / self.step_ns
        part = lambda pieces: (e := stats.in_place(result, pieces)) and e.scaled(over)  # noqa: E731
        self.gate, self.all = part(stats.GATE), part(stats.GATE + stats.REWIND + stats.OTHER)
        self.paired, self.wall, self.control = (
            paired(result, "on"),
            paired(result, "on", clock="wall"),
            paired(result, "control"),
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
            percent(self.gate),
            percent(self.all),
            interval(self.paired),
            interval(self.wall),
            interval(self.control),
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


def own_section(results, threads):
    found = sorted(
        (r for n, r in results.items() if n.startswith("own-") and r["spec"]["threads"] == threads), key=order
    )
    return [Own(r) for r in found]


def fixed_rows(results):
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
            verdict = stats.judge(figure.scaled(scale), paired(r, arm), 100 * limit * 1e3 / step)
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


def piece_rows(results):
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


def extra_rows(results):
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
                    percent(own.all),
                    interval(own.paired),
                    interval(own.control),
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


def gan_rows(results):
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
                interval(paired(r, "on")),
                interval(paired(r, "copies")),
                interval(paired(r, "control")),
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


def memory_rows(results):
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
