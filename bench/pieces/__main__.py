"""python -m bench.pieces [--out FILE] [--seconds N]

Calls each piece of a healthy step by itself, many times over, on the state of a real training (time_piece and time_call
of the engine), and then reads the same pieces inside real steps (the engine's meter). Writes docs/overhead-pieces.md.
"""

import argparse
import json
import operator
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.overhead import machine  # noqa: E402
from bench.pieces import jumps  # noqa: E402

TRIALS, TRIAL_NS = 15, 2e6
SCANNED = [(4 << 10, "4 KB"), (256 << 10, "256 KB"), (4 << 20, "4 MB"), (64 << 20, "64 MB")]


def _times(call, guess=100):
    """(median, shortest) of trials of about TRIAL_NS each. call(count) gives nanoseconds per call."""
    count = guess
    while (ns := call(count)) * count < TRIAL_NS / 4 and count < 1 << 20:
        count *= 4
    count = max(1, int(TRIAL_NS / max(ns, 1)))
    found = [call(count) for _ in range(TRIALS)]
    return statistics.median(found), min(found)


class Budget:
    """Times taken in the process of one training, with the recorder on."""

    def __init__(self, kind):
        import torch
        from bench.overhead import arms, models, worker

        torch.set_num_threads(1)
        self.torch, self.folder = torch, tempfile.TemporaryDirectory()
        self.job = models.Job(kind, "adamw")
        worker.warm_up(self.job, seconds=0.2)
        self.finitude = arms.Finitude(self.job, pathlib.Path(self.folder.name))
        self.native = self.finitude.native
        self.finitude.on()
        worker.warm_up(self.job, seconds=0.2)
        x, y = self.job.kind.batch()
        self.loss = self.job.loss_of(self.job.model, x, y)
        self.loss.backward(retain_graph=True)
        self.batch = (x, y)

    def piece(self, name, of=None):
        return _times(lambda count: self.native.time_piece(name, of, count))

    def call(self, function, arguments, names=None):
        return _times(lambda count: self.native.time_call(function, arguments, names, count))

    def measure(self):
        """{piece: (median, shortest)} in nanoseconds."""
        native, optimizer = self.native, self.job.optimizer
        out = {
            name: self.piece(name, optimizer)
            for name in (
                "walk",
                "judge, all to be read",
                "judge, all read before",
                "close the window",
                "ring",
                "window start",
            )
        }
        out |= {name: self.piece(name) for name in ("rng", "buffers", "buffer check", "frames")}
        out["loss"] = self.piece("loss", self.loss)
        out["step"] = self.call(native.optimizer_pre_hook, (optimizer, (optimizer,), {}))
        out["written"] = self.piece("read everything written", optimizer)
        out["undo"] = self.piece("undo copy", optimizer)
        # From here the recorder is off, and torch's own functions are stood in for by one that does nothing.
        native.set_on(False)
        hook_off = self.call(native.optimizer_pre_hook, (optimizer, (optimizer,), {}))
        out["hook"] = hook_off
        backward = ((), (), False, False, (), True, True)
        names = ("allow_unreachable", "accumulate_grad")
        real_next = self._next_stands_for(operator.itemgetter(0))
        native.configure(self.finitude.cold, native.nothing, native.nothing)
        direct, ours = (
            self.call(native.nothing, backward, names),
            self.call(native.engine_run_backward, backward, names),
        )
        out["backward hook"] = tuple(a - b for a, b in zip(ours, direct))
        native.set_on(True)
        fetched, plain = self.piece("loader", [self.batch]), self.call(operator.itemgetter(0), ([self.batch],))
        out["loader"] = tuple(a - b for a, b in zip(fetched, plain))
        real_next()
        return out

    def _next_stands_for(self, function):
        from torch.utils.data import dataloader

        self.finitude.install._patches.undo()
        loader, iterator = dataloader.DataLoader, dataloader._BaseDataLoaderIter
        real = loader.__dict__["__iter__"], iterator.__dict__["__next__"]
        self.native.loader_methods(real[0], function)
        return lambda: self.native.loader_methods(*real)

    def scans(self):
        """[(text, nanoseconds, GB/s)] of one read of a gradient that lies in memory of that size."""
        out = []
        for size, text in SCANNED:
            tensor = self.torch.randn(size // 4)
            ns, _ = self.piece("scan", tensor)
            out.append((text, ns, size / ns))
        return out

    def cold_page(self):
        return statistics.median(self.native.time_piece("cold page", None, 1) for _ in range(TRIALS))

    def facts(self):
        return {
            "parameters": len(self.job.parameters),
            "bytes": self.job.gradient_bytes(),
            "buffers": sum(1 for _ in self.job.model.buffers()),
        }


def in_place(kind, loader, seconds):
    """The worker's result with the meter on, in a process of its own."""
    from bench.overhead import __main__ as overhead

    with tempfile.TemporaryDirectory() as folder:
        spec = {
            "measure": "overhead",
            "kind": kind,
            "optimizer": "adamw",
            "threads": 1,
            "loader": loader,
            "seconds": seconds,
            "least": 5,
            "folder": folder,
        }
        result, why = overhead.run_cell(spec, timeout=120 + 20 * seconds)
    if result is None:
        sys.exit(f"bench.pieces: {kind}: {why}")
    if not result.get("pieces"):
        sys.exit(f"bench.pieces: {kind}: no step was left to run through within {seconds:.0f} s; give more --seconds")
    return result


def in_a_process(call):
    """What it returns in a process of its own with one thread of torch's: nothing that was measured before is in its
    memory."""
    code = (
        f"import json, sys; sys.path.insert(0, {str(ROOT)!r}); import torch; torch.set_num_threads(1); "
        f"from {call.__module__} import {call.__name__} as call; print(json.dumps(call()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(f"bench.pieces: {call.__module__}\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def by_itself(kind):
    """Budget.measure() in a process of its own."""
    code = (
        "import json, sys; from bench.pieces.__main__ import Budget; b = Budget(sys.argv[1]); "
        "print(json.dumps([b.measure(), b.scans() if sys.argv[1] == 'tiny' else [], b.facts(), "
        "b.cold_page()]))"
    )
    paths = [str(ROOT)] + [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    done = subprocess.run(
        [sys.executable, "-c", code, kind],
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        sys.exit(f"bench.pieces: {kind}\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


# piece, how it is got from what was timed, whose it is, what it does
def _difference(m, a, b):
    return tuple(max(0.0, x - y) for x, y in zip(m[a], m[b]))


BUDGET = [
    (
        "hook at backward",
        lambda m: m["backward hook"],
        "gate",
        "replaces `torch.autograd._engine_run_backward`, hands everything on",
    ),
    ("hook at step", lambda m: m["hook"], "gate", "the optimizer's pre-hook, entered and left"),
    ("note of the loss", lambda m: m["loss"], "gate", "value, checksum, is it finite"),
    ("walk over the parameters", lambda m: m["walk"], "gate", "groups, parameters, is there a gradient"),
    (
        "scan of the gradients",
        lambda m: _difference(m, "judge, all to be read", "judge, all read before"),
        "gate",
        "one read of every gradient, from cache here",
    ),
    (
        "verdict",
        lambda m: tuple(x + z - y for x, y, z in zip(m["judge, all read before"], m["walk"], m["close the window"])),
        "gate",
        "marks, versions, a slice of what was written, the window is closed",
    ),
    ("buffer check", lambda m: m["buffer check"], "gate", "has a buffer become NaN"),
    ("ring", lambda m: m["ring"], "gate", "64 bytes into the memory-mapped ring of steps, the clock"),
    ("random generators", lambda m: m["rng"], "rewind", "torch, Python and numpy"),
    ("buffers", lambda m: m["buffers"], "rewind", "copy of those that may have changed"),
    ("frames", lambda m: m["frames"], "rewind", "names, iterators and value stacks of the user's frames"),
    (
        "batch of a DataLoader",
        lambda m: m["loader"],
        "rewind",
        "reference, checksum of 512 bytes of each tensor, generators after it",
    ),
]


def _ns(value):
    return f"{value:.0f}" if value < 10000 else f"{value / 1e3:.1f} us"


def page(found, places, seconds, of_jumps):
    kinds = list(found)
    texts = {"tiny": "tiny MLP", "resnet18": "ResNet-18", "gpt-toy": "GPT 4x128"}
    out = [
        "# The budget of a step",
        "",
        "What each piece of a healthy step costs in nanoseconds of CPU time, so that anyone sees "
        "what a change costs. Written by",
        "`make bench-pieces`; how they add up to a share of a step is in [overhead](overhead.md).",
        "",
        *machine.lines("make bench-pieces"),
        "",
        "**By itself**: the engine calls that piece in a loop, on the state of a real training "
        f"(median of {TRIALS} trials). "
        "Everything is in the cache, so this is the floor, and what a change of the code shows in "
        "first. **In place**: the "
        "engine's meter inside real steps, caches as the step leaves them.",
        "",
    ]
    head = ["piece", "of", *(f"{texts[k]}, by itself" for k in kinds), "what it does"]
    rows, sums = [], {k: {"gate": 0.0, "rewind": 0.0} for k in kinds}
    for name, get, part, text in BUDGET:
        cells = []
        for k in kinds:
            value = get(found[k][0])[0]
            sums[k][part] += value
            cells.append(_ns(value))
        rows.append([name, part, *cells, text])
    for part, text in (("gate", "**the gate**"), ("rewind", "**what a rewind needs**")):
        rows.append([text, "", *(f"**{_ns(sums[k][part])}**" for k in kinds), ""])
    rows.append(
        [
            "a whole call at `step`, for comparison",
            "",
            *(_ns(found[k][0]["step"][0]) for k in kinds),
            "everything above but loss, backward and DataLoader; marks read before",
        ]
    )
    out += (
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows] + [""]
    )
    facts = {k: found[k][2] for k in kinds}
    out += [
        "; ".join(
            f"{texts[k]}: {f['parameters']} parameters, {f['bytes'] / 1e6:.3g} MB of gradients, {f['buffers']} buffers"
            for k, f in facts.items()
        )
        + ".",
        "",
    ]
    out += [
        "## In place",
        "",
        f"The same in real steps of AdamW foreach over a DataLoader, one thread, {seconds:g} s each; by the meter.",
        "",
    ]
    from bench.overhead import stats

    pieces = stats.GATE + stats.REWIND
    out += [
        "| step of | step, ms | reached from torch | " + " | ".join(pieces) + " | gate | all |",
        "|" + "---|" * (len(pieces) + 5),
    ]
    for kind, result in places.items():
        values = [statistics.median(one[p][0] for one in result["pieces"]) for p in pieces]
        reach = result["call_through"]["hook"] + result["call_through"]["backward"] + result["call_through"]["loader"]
        gate, everything = stats.in_place(result, stats.GATE), stats.in_place(result, pieces)
        step = statistics.median(result["cpu"]["off"]) / 1e6
        out.append(
            f"| {texts[kind]} | {step:.3g} | {_ns(reach)} | "
            + " | ".join(_ns(v) for v in values)
            + f" | {_ns(gate.value)} | {_ns(everything.value)} |"
        )
    out += [
        "",
        f"One load from a page that nothing has touched since 64 MB went through the caches takes "
        f"{statistics.median(found[k][3] for k in kinds):.0f} ns here (256 pages, each load waits "
        "for the one before): the difference between "
        "the two tables is mostly that, once for each page of objects, tables and code that a piece has to look at.",
        "",
    ]
    out += of_jumps
    out += [
        "## Reading a gradient",
        "",
        "One float32 gradient, read again and again by one thread, call included.",
        "",
        "| size | time | GB/s | ns per KB |",
        "|---|---|---|---|",
    ]
    for text, ns, rate in found["tiny"][1]:
        kilobytes = rate * ns / 1024
        out.append(f"| {text} | {_ns(ns)} | {rate:.0f} | {ns / kilobytes:.1f} |")
    out += [
        "",
        "## Where it is asked for",
        "",
        "| piece | " + " | ".join(texts[k] for k in kinds) + " |",
        "|" + "---|" * (len(kinds) + 1),
    ]
    for name, text in (
        ("written", "read all that the optimizer wrote (half precision, `--undo-mb`)"),
        ("undo", "undo copy (`--undo-mb`)"),
    ):
        out.append(f"| {text} | " + " | ".join(_ns(found[k][0][name][0]) for k in kinds) + " |")
    return "\n".join(out) + "\n"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.pieces", description="Writes docs/overhead-pieces.md.")
    parser.add_argument("--out", default=str(ROOT / "docs/overhead-pieces.md"))
    parser.add_argument("--seconds", type=float, default=15, help="for each step that is looked into (15)")
    options = parser.parse_args(argv)
    found, places = {}, {}
    for number, kind in enumerate(("tiny", "gpt-toy", "resnet18"), 1):
        print(f"[{number} of 7] {kind}, each piece by itself", flush=True)
        found[kind] = by_itself(kind)
    for number, kind in enumerate(found, 4):
        print(f"[{number} of 7] {kind}, in place", flush=True)
        places[kind] = in_place(kind, True, options.seconds)
    print("[7 of 7] jumps", flush=True)
    pathlib.Path(options.out).write_text(page(found, places, options.seconds, in_a_process(jumps.table)))
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
