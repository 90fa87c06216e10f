"""Writes docs/replay-cost.md: what a replay costs beside the step that it replays. usage: replay_cost.py [--rounds N]
[--out FILE]

Time: step (forward and backward) and replay in one process, in turns; the median of the ratios of neighbours, with the
quartiles. Memory: the largest resident size of a process that takes two steps, less its size when torch was imported,
beside that of finitude-replay, less its size with a tape of one call."""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "replay-cost.md"
HEAD = """# What a replay costs

One step, forward and backward, and its replay by `finitude-replay`, one thread. Time: median of the ratio replay / step of
neighbours, with the quartiles, of {rounds} pairs. Memory: largest resident size above that of an idle process.
Written by `tools/replay_cost.py` with torch {torch} on {machine}, {date}.

| program | calls | step, ms | replay, ms | replay / step | step, MB | replay, MB | replay / step |
|---|---|---|---|---|---|---|---|
"""


def resident_mb():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10)), (
        256,
        512,
    )


def cnn():
    from torch import nn

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(block(3, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(2048, 10)), (
        64,
        3,
        32,
        32,
    )


def transformer():
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 10)), (8, 128, 256)


def small():
    from torch import nn

    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)), (32, 32)


PROGRAMS = {
    "MLP of 5.3 million parameters": mlp,
    "CNN with BatchNorm": cnn,
    "transformer of 4 layers, dropout": transformer,
    "MLP of 7 thousand parameters": small,
}


def a_step(name):
    import torch

    torch.manual_seed(0)
    model, shape = PROGRAMS[name]()
    x = torch.randn(shape)

    def step():
        model.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    return model, step


def taped(name):
    """The bytes of the tape of a step, and the step."""
    from finitude import _native

    model, step = a_step(name)
    step()
    _native.tape_start()
    loss = step()
    _native.tape_stop()
    _native.tape_outcome("loss", "loss", loss.detach())
    for key, p in model.named_parameters():
        _native.tape_outcome("gradient", key, p.grad)
    return _native.tape_take(), step


def child_memory(name):
    import torch  # noqa: F401

    before = resident_mb()
    _, step = a_step(name)
    step()
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def child_time(name, rounds):
    from finitude import _native

    tape, step = taped(name)
    pairs = []
    for i in range(rounds + 3):
        begin = time.perf_counter()
        step()
        taken = time.perf_counter() - begin
        played = _native.tape_play(tape, ["aten"], 1)
        assert played["identical"], played
        if i >= 3:
            pairs.append((taken * 1e3, played["seconds"] * 1e3))
    return {"calls": played["calls"], "pairs": pairs}


def child_tape(name, file):
    import torch

    if name:
        pathlib.Path(file).write_bytes(taped(name)[0])
        return
    from finitude import _native

    x = torch.ones(2)
    _native.tape_start()
    y = x + x
    _native.tape_stop()
    _native.tape_outcome("value", "y", y)
    pathlib.Path(file).write_bytes(_native.tape_take())


def ask(*words):
    """The answer of this file in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout or "null")


def peak_of_replay(file):
    # What a process was before it became another program counts: this one never imports torch.
    player = pathlib.Path(importlib.util.find_spec("finitude").origin).with_name("finitude-replay")
    process = subprocess.Popen([player, file], stdout=subprocess.DEVNULL, env={"OMP_NUM_THREADS": "1"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0 and used.ru_maxrss > 2 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used.ru_maxrss / 1024


def row(name, rounds, folder):
    timed = ask("--child-time", name, "--rounds", rounds)
    file = folder / "step.tape"
    ask("--child-tape", name, "--file", file)
    ask("--child-tape", "", "--file", folder / "idle.tape")
    replay_mb = peak_of_replay(file) - peak_of_replay(folder / "idle.tape")
    step_mb = ask("--child-memory", name)
    ratios = sorted(b / a for a, b in timed["pairs"])
    quarter = len(ratios) // 4
    step, replay = (statistics.median(pair[i] for pair in timed["pairs"]) for i in (0, 1))
    memory = f"{replay_mb / step_mb:.2f}" if step_mb > 8 else ""
    return (
        f"| {name} | {timed['calls']} | {step:.2f} | {replay:.2f} | {statistics.median(ratios):.2f} "
        f"({ratios[quarter]:.2f} to "
        f"{ratios[-1 - quarter]:.2f}) | {step_mb:.0f} | {replay_mb:.0f} | {memory} |\n"
    )


def machine():
    names = [
        line.split(":", 1)[1].strip()
        for line in open("/proc/cpuinfo", encoding="utf-8")
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=PAGE)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--child-time")
    parser.add_argument("--child-memory")
    parser.add_argument("--child-tape")
    parser.add_argument("--file")
    words = parser.parse_args()
    if words.child_time is not None:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(child_time(words.child_time, words.rounds)))
    elif words.child_memory is not None:
        print(json.dumps(child_memory(words.child_memory)))
    elif words.child_tape is not None:
        child_tape(words.child_tape, words.file)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = [row(name, words.rounds, pathlib.Path(folder)) for name in PROGRAMS]
        table = HEAD.format(
            rounds=words.rounds,
            torch=importlib.metadata.version("torch"),
            machine=machine(),
            date=datetime.date.today(),
        ) + "".join(rows)
        pathlib.Path(words.out).write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
