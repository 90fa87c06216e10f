"""docs/overhead-gpu.md from the figures of scan_bench and torch_bench: report.py SCAN.json TORCH.json OUT.md"""

import datetime
import json
import sys

REACH_READ, REACH_SMALL = 0.85, 15.0


def table(head, rows):
    rows = list(rows)
    if not rows:
        return "Not measured: this run ended before it came to them.\n"
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]) + "\n"


def scan_rows(rows):
    for r in rows:
        speed = r["bytes"] / r["us"] / 1e3
        share = r["read_us"] / r["us"] if r["read_us"] else None
        reach = ""
        if r["what"] == "scan" and share and r["bytes"] >= 256 << 20:
            reach = "reached" if share >= REACH_READ else "missed (85 % wanted)"
        if r["of"].startswith("1000 tensors"):
            reach = "reached" if r["us"] <= REACH_SMALL else f"missed ({REACH_SMALL:.0f} us wanted)"
        yield (
            r["what"],
            r["of"],
            f"{r['us']:.1f}",
            f"{r['us_low']:.1f} to {r['us_high']:.1f}",
            f"{speed:.0f}",
            f"{100 * share:.0f} %" if share else "",
            reach,
        )


def main(scan_file, torch_file, out_file):
    scan, framework = (json.load(open(f, encoding="utf-8")) for f in (scan_file, torch_file))
    text = [
        f"# What watching costs on a GPU: {scan['device']}\n",
        f"Made by `make gpu` on {datetime.date.today().isoformat()}: {scan['device']} "
        f"({scan['processors']} multiprocessors, "
        f"{scan['memory_gb_s']:.0f} GB/s by its data sheet), CUDA {scan['driver'] / 1000:.1f} "
        f"(driver), torch {framework['torch']}, "
        f"Python {framework['python']}. Medians; the spread is the 10th to the 90th percentile.\n",
        "## The scan against a plain read of the same memory\n",
        table(("what", "of", "us", "spread", "GB/s", "of the plain read's speed", "reach"), scan_rows(scan["rows"])),
        "## Beside what one could use instead\n",
        table(
            ("gradients", "MB", "what", "us", "spread"),
            [
                (
                    r["set"],
                    f"{r['bytes'] / 1e6:.0f}",
                    r["what"],
                    f"{r['us']['median']:.1f}",
                    f"{r['us']['low']:.1f} to {r['us']['high']:.1f}",
                )
                for r in framework["kernels"]
            ],
        ),
        "## A step with the recorder on, over one with it off\n",
        "The control is a block with it off over another one with it off: the noise. "
        f"At least {min((r['blocks'] for r in framework['steps']), default=0)} pairs of blocks in each row.\n",
        table(
            ("model", "optimizer", "step, us", "first step watched, us", "on / off", "spread", "control", "spread"),
            [
                (
                    r["model"],
                    r["optimizer"],
                    f"{r['step_us']:.0f}",
                    f"{r['first_us']:.0f}" if "first_us" in r else "",
                    f"{r['ratio']['median']:.4f}",
                    f"{r['ratio']['low']:.4f} to {r['ratio']['high']:.4f}",
                    f"{r['control']['median']:.4f}",
                    f"{r['control']['low']:.4f} to {r['control']['high']:.4f}",
                )
                for r in framework["steps"]
            ],
        ),
        "## Gradients read while backward runs, over gradients read by the step\n",
        "`--stream-gradients on` over `off`, AdamW fused, both watched; below 1 is faster. The "
        "control is `off` over `off`.\n",
        table(
            ("model", "MB of gradients", "step, us", "on / off", "spread", "control", "spread"),
            [
                (
                    r["model"],
                    f"{r['bytes'] / 1e6:.0f}",
                    f"{r['step_us']:.0f}",
                    f"{r['ratio']['median']:.4f}",
                    f"{r['ratio']['low']:.4f} to {r['ratio']['high']:.4f}",
                    f"{r['control']['median']:.4f}",
                    f"{r['control']['low']:.4f} to {r['control']['high']:.4f}",
                )
                for r in framework["streamed"]
            ],
        ),
    ]
    with open(out_file, "w", encoding="utf-8") as f:
        f.write("\n".join(text))


main(*sys.argv[1:])
