"""python -m bench.dump [--steps N] [--out FILE]

What a dumped step costs: one step in two is dumped, and each is compared with the step after it. Writes docs/dump.md
below its line of dashes. msprobe, where it is installed (`make bench-peers`), patches torch when it is imported, so it
is in processes of its own.
"""

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
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARM_UP = 4  # pairs
KINDS = ("statistics", "checksums", "tensors", "checksums+operators-only", "tensors+operators-only")
MSPROBE = (("statistics", "L1"), ("statistics", "L0"), ("tensor", "L0"), ("tensor", "L1"))  # task, level


class Job:
    """A transformer encoder of four layers, and AdamW."""

    def __init__(self):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4), torch.nn.Linear(128, 16))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(8, 32, 128)

    def step(self):
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.optimizer.step()


def pairs(dumped, plain, count):
    """Median ratio of the two, and of the plain one the milliseconds."""
    ratios, milliseconds = [], []
    for _ in range(count + WARM_UP):
        began = time.perf_counter()
        dumped()
        between = time.perf_counter()
        plain()
        ended = time.perf_counter()
        ratios.append((between - began) / (ended - between))
        milliseconds.append(1e3 * (ended - between))
    return statistics.median(ratios[WARM_UP:]), statistics.median(milliseconds[WARM_UP:])


def size(folder, steps):
    """MB of a dumped step."""
    return sum(p.stat().st_size for p in pathlib.Path(folder).rglob("*") if p.is_file()) / 1e6 / steps


def ours(kind, count):
    import finitude

    job = Job()
    with tempfile.TemporaryDirectory() as folder:
        options = {"dump": kind, "dump_steps": "every=2", "dump_mb": 0}
        with finitude.watch(job.model, job.optimizer, runs=folder, quiet=True, **options):
            ratio, milliseconds = pairs(job.step, job.step, count)
        (dumps,) = pathlib.Path(folder).glob("*/dumps")
        return ratio, milliseconds, size(dumps, count + WARM_UP)


def off(count):
    """Ratio of a watched step with --dump off to one without: each a watch of its own, one after the other."""
    import finitude

    ratios, both = [], []
    for _ in range(count // 4):
        milliseconds = []
        for options in ({"dump": "off"}, {}):
            job = Job()
            with tempfile.TemporaryDirectory() as folder:
                with finitude.watch(job.model, job.optimizer, runs=folder, quiet=True, **options):
                    milliseconds.append(pairs(job.step, job.step, WARM_UP)[1])
        ratios.append(milliseconds[0] / milliseconds[1])
        both.append(milliseconds[1])
    return statistics.median(ratios), statistics.median(both), 0.0


def probe(task, level, count):
    from msprobe.pytorch import PrecisionDebugger

    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "config.json")
        of_task = {"scope": [], "list": [], "data_mode": ["all"]}
        if task == "statistics":
            of_task["summary_mode"] = "statistics"
        config.write_text(
            json.dumps(
                {
                    "task": task,
                    "dump_path": f"{folder}/dump",
                    "rank": [],
                    "step": [],
                    "level": level,
                    "async_dump": False,
                    task: of_task,
                }
            )
        )
        job, debugger = Job(), PrecisionDebugger(config_path=str(config))

        def dumped():
            debugger.start(job.model)
            job.step()
            debugger.stop()
            debugger.step()

        ratio, milliseconds = pairs(dumped, job.step, count)
        return ratio, milliseconds, size(f"{folder}/dump", count + WARM_UP)


def row(name, found):
    ratio, milliseconds, megabytes = found
    return f"| {name} | {ratio:.2f} | {milliseconds:.0f} | {megabytes:.2f} |"


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser(prog="bench.dump")
    parser.add_argument("--steps", type=int, default=40, help="pairs of steps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", help="TASK,LEVEL of msprobe: measure that alone, and print its row")
    parser.add_argument("--out", default=str(ROOT / "docs/dump.md"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peer:
        task, level = options.peer.split(",")
        print(row(f"msprobe, `task: {task}`, `level: {level}`", probe(task, level, options.steps)))
        return
    lines = [
        "## Cost",
        "",
        f"`python -m bench.dump --steps {options.steps}`, {datetime.date.today()}, {processor()}, {os.cpu_count()} cores "
        f"with a load of {os.getloadavg()[0]:.0f}, {options.threads} thread, torch {torch.__version__}. A dumped step over the one after it, the median of pairs; "
        "a transformer encoder of 4 layers (width 128, 8 x 32 tokens), AdamW.",
        "",
        "| kind | times a step | ms of a step | MB of a dump |",
        "|---|---|---|---|",
        row("`off`", off(options.steps)),
        *(row(f"`{kind}`", ours(kind, options.steps)) for kind in KINDS),
    ]
    lines += peers(options)
    out = pathlib.Path(options.out)
    head, dashes, _ = out.read_text().partition("\n---\n")
    out.write_text(head.rstrip("\n") + "\n\n---\n\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))


def peers(options):
    """Rows of msprobe, each of a process of its own; none where it is not installed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build/bench-peers"), "PYTHONWARNINGS": "ignore"}
    rows = []
    for task, level in MSPROBE:
        words = ["-m", "bench.dump", "--steps", str(options.steps), "--peer", f"{task},{level}"]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
        rows += [line for line in done.stdout.splitlines() if line.startswith("| msprobe")]
        if done.returncode:
            print(f"msprobe {task} {level}: {(done.stderr.strip().splitlines() or [''])[-1]}", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
