"""The table of what others cost, and whether a traced step is as fast as it has to be."""

import statistics

from . import stats
from .cells import MODEL_TEXT
from .page_text import order


def compare_rows(results, threads):
    columns = sorted(
        (r for n, r in results.items() if n.startswith("compare-") and r["spec"]["threads"] == threads), key=order
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


def traced_verdicts(columns):
    out = []
    for r in columns:
        for arm in ("trace", "armed"):
            e = stats.pair_ratio(r["cpu"][arm], r["cpu"]["off"])
            state = "holds" if e.high <= stats.TRACED else "missed" if e.low > stats.TRACED else "undecided"
            out.append((MODEL_TEXT[r["spec"]["kind"]], r["spec"]["threads"], arm, e, state))
    return out
