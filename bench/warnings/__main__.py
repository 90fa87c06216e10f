"""How early a training that fails slowly is warned of, and whether one that is well is left alone:

    python -m bench.warnings [--only TEXT] [--write]      --write: docs/warnings.md

Each training runs in a process of its own under finitude.watch with its defaults, until its first alarm or its end."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ABOUT = """# Warnings

Most trainings that fail do so slowly: loss or gradients grow for a hundred steps before the first value is not finite.
Finitude looks at numbers that the gate reads anyway (the loss, the largest magnitude of each gradient, the norm that
clipping computes, the learning rate, the loss scale, a 64th of the weights in each step) and prints one line that begins with `finitude: warning`. A warning stops nothing. It is also an
event in `events.jsonl` and an entry of `warnings` in the report.

| name | reported when |
|---|---|
| `growth` | the loss has grown tenfold, or threefold while the gradients grew tenfold, or the gradients a hundredfold while the loss did not fall; along a line in logarithms, more than its scatter, and still growing. Or, in two steps that each bring threefold, to fifty times the largest of the 126 before. Or the largest weight is ten times the largest that the training began with, four times where a third of the parameters hardly change, and a parameter grows by one factor per step. |
| `spike` | the loss is ten times its usual value for four steps, and the gradients are three times theirs |
| `outlier` | the loss of a single step is a thousand times its usual value and the gradients thirty times theirs, of what clipping leaves of them; or thirty and ten times, where that is forty times the usual distance of one step to the next. An event, an entry of the report and rows ([rows](rows.md)), without a line; the first 100 |
| `vanishing` | the gradients are a millionth of those of the first steps, and the loss has not halved |
| `scale` | the loss scale is at most 16 and 1024 times smaller than it was |
| `dead` | the gradient of a parameter that had one has been exactly zero for 200 steps. Several at once are one line |
| `clipping` | `clip_grad_norm_` has cut the gradients to less than a tenth in each of 200 steps |
| `norm` | the 2-norm of all gradients, before clipping, is above `--grad-warn` |
| `no-learning` | no parameter has changed for 256 steps, though gradients and learning rate are not zero |
| `headroom` | the largest gradient of a parameter is within 4 bits of the largest number of the dtype it is computed in, in four steps, or within 8 bits and on a course that overflows within 200 steps. Weights that autocast or the program casts to float16 have its limit, except under a GradScaler |
| `vanishing-depth` | over the weight matrices (at least 6, in the order of the parameters) the gradients of the first ones are ten thousand times smaller than those of the last ones, along a line in logarithms, in six looks at every fourth step, after the first 64 steps |
| `exploding-depth` | the same the other way round: the gradients of the first ones are ten thousand times larger |
| `logits` | the largest magnitude that `log_softmax` (of a cross-entropy, say) is given reaches 100 and four times that of the first three looks, in two looks in a row |
| `attention` | the same of what attention's softmax is given; inside fused attention that of the query of the largest norm of each head |
| `dropped` | 10 of the last 100 steps were not applied: the program dropped them, or, after the first 100, a GradScaler skipped them |

Logits are looked at on the CPU, after 4 steps and then after gaps that double up to 256 steps (4096 where no softmax was seen): each operator of
such a step costs about a microsecond more. At most 2^20 values of a tensor are read, in rows that lie evenly; values below -10,000 are masks.

The text names the step of the onset, the factor per step, the learning rate, and the parameter whose weights grow while
others stay; else the one whose gradient grew most, where one grew more than the others. For growth it estimates in how many steps values overflow: at the earliest when the
square of the quantity does, at the latest when the quantity itself does, with twice the uncertainty of the rate, and with
its latest value, so that a growth that speeds up has a wide interval. Where the latest is more than ten times the earliest,
no number is given. `headroom` estimates the steps until the gradient itself overflows, in the same way.

A warning is repeated when its quantity has become ten times larger, then a hundred, then ten thousand times. `--warnings growth,dead` keeps only these,
`--warnings off` none. Programs that link the C++ recorder have
the warnings of loss and gradients.
"""
ROOT = pathlib.Path(__file__).resolve().parents[2]
IN_TIME = 20  # steps before the first value that is not finite


def run_one(name, report):
    import torch

    import finitude

    from .failing import FAILING
    from .healthy import HEALTHY

    torch.set_num_threads(1)
    torch.manual_seed(0)
    function = FAILING[name][0] if name in FAILING else HEALTHY[name]
    steps, ended = 0, "its end"
    watch = finitude.watch(on_alarm="raise", runs=os.path.dirname(report))
    try:
        for loss in function():
            steps += 1
    except finitude.NonFiniteError:
        ended = "an alarm"
    result = {"steps": steps, "ended": ended, "loss": loss.item(), "warnings": watch.report()["warnings"]}
    pathlib.Path(report).write_text(json.dumps(result))
    watch.close()


def measured(name):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "result.json")
        command = [sys.executable, "-m", "bench.warnings", "--run", name, report]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not os.path.exists(report):
            raise SystemExit(f"{name}: {done.stderr}")
        return json.loads(pathlib.Path(report).read_text())


def said(warnings):
    """Without those that have no line."""
    return [one for one in warnings if one["what"] != "outlier"]


def rows_of_failing(names):
    from .failing import FAILING

    rows = []
    for name in names:
        result = measured(name)
        early = said(result["warnings"])[:1]
        lead = result["steps"] - early[0]["step"] if early else None
        rows.append((name, result, early[0] if early else None, lead, FAILING[name][1]))
        print(
            f"{name:32} ended by {result['ended']} at {result['steps']}: "
            + (f"lead {lead}, {early[0]['name']}: {early[0]['text']}" if early else "no warning"),
            flush=True,
        )
    return rows


def rows_of_healthy(names):
    rows = []
    for name in names:
        result = measured(name)
        rows.append((name, result))
        print(
            f"{name:40} {result['steps']} steps, loss {result['loss']:.3g}, {result['ended']}"
            + "".join(f"\n    {w['step']}: {w['text']}" for w in result["warnings"]),
            flush=True,
        )
    return rows


def page(failing, healthy):
    import torch

    warned = [lead for *_, lead, _ in failing if lead is not None and lead >= 1]
    steps = sum(result["steps"] for _, result in healthy)
    false = sum(len(result["warnings"]) for _, result in healthy)
    of_one = [first["name"].startswith(right) for *_, first, _, right in failing if first and right]
    of_all = [first["name"] in ("loss", "gradient") for *_, first, _, right in failing if first and not right]
    forecasts = [(first["horizon"], lead) for _, _, first, lead, _ in failing if first and first["horizon"]]
    held = sum(low <= lead <= high for (low, high), lead in forecasts)
    lines = [
        ABOUT,
        "## Measured",
        "",
        "Generated by `python -m bench.warnings --write` "
        f"(torch {torch.__version__}, one thread, {platform.machine()} Linux, {datetime.date.today()}). The trainings: `bench/warnings/failing.py`, `bench/warnings/healthy.py`. The "
        "thresholds were chosen with these trainings at hand.",
        "",
        f"- {len(warned)} of {len(failing)} trainings that fail slowly were warned of before the first value that is not finite.",
        f"- Lead: median {statistics.median(warned):.0f} steps; {sum(w >= IN_TIME for w in warned)} of {len(warned)} at least {IN_TIME}.",
        f"- Of {len(of_one)} trainings whose failure begins in one layer the first warning names it in {sum(of_one)}; of the {len(of_all)} others it names no parameter in {sum(of_all)}.",
        f"- {len(forecasts)} of these warnings estimate when values overflow; {held} of these intervals hold the first alarm.",
        f"- {false} warnings in {steps:,} steps of {len(healthy)} healthy trainings.",
        "",
        "| training | first alarm at step | warned at | lead | first warning |",
        "|---|---|---|---|---|",
    ]
    for name, result, first, lead, _ in failing:
        end = str(result["steps"]) if result["ended"] == "an alarm" else f"none in {result['steps']}"
        lines.append(
            f"| `{name}` | {end} | {first['step'] if first else ''} | {lead if first else ''} | {first['text'] if first else 'none'} |"
        )
    lines += ["", "| healthy training | steps | warnings |", "|---|---|---|"]
    lines += [f"| `{name}` | {result['steps']} | {len(result['warnings']) or ''} |" for name, result in healthy]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.warnings", description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--write", action="store_true", help="write docs/warnings.md")
    parser.add_argument("--run", nargs=2, metavar=("NAME", "RESULT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        return run_one(*arguments.run)
    from .failing import FAILING
    from .healthy import HEALTHY

    failing = rows_of_failing([name for name in FAILING if arguments.only in name])
    healthy = rows_of_healthy([name for name in HEALTHY if arguments.only in name])
    if arguments.write and not arguments.only:
        (ROOT / "docs/warnings.md").write_text(page(failing, healthy))
    return None


if __name__ == "__main__":
    main()
