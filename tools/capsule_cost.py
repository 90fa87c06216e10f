"""Writes docs/capsule-cost.md: what a capsule costs a program that trains on. usage: capsule_cost.py [--rounds N]
[--out FILE]

In turns, in one process: a step is recorded and written as a capsule beside the program; the same bytes are written
plainly, header and tensors in the safetensors format, straight from the live tensors, while as much memory is taken as
the capsule holds. Neither is synced to the disk. Which of the two comes first alternates. Medians, of ratios the median
of pairs with the quartiles."""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import replay_cost

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "capsule-cost.md"
WARM_UP = 3
HEAD = """# What a capsule costs

A bad step under `--on-alarm skip` or `warn`: forward and backward of a model whose optimizer is Adam, one thread. What the program
waits for is all between the alarm and its next line: the copy off the live tensors, and making a tape of what was recorded. The capsule
is then written, read back, and, where its inputs take at most 16 MB, replayed by `finitude-replay`, beside the
program. Plain: the same bytes written from the live tensors into one safetensors file, copied in memory. Neither is synced to the
disk. Medians of {rounds} rounds in turns; in brackets the quartiles of the ratio.
Written by `make bench-capsule` (`tools/capsule_cost.py`) with torch {torch} on {machine}, {date}, at a load of {load:.1f}: where others
keep the processors busy, a thread beside the program, which is nicer than they are, gets little of them.

| program | capsule, MB | step, ms | the program waits, ms | plain copy, ms | waits / copy | plain write, ms | write, ms | write / plain | until read back, ms | read back / plain | replay, ms |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def wide(width, layers):
    def program():
        from torch import nn

        return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh()))), (8, width)

    return program


# Adam holds as much again twice.
PROGRAMS = {
    "MLP of 25 million parameters": wide(2048, 6),
    "transformer of 4 layers, dropout": replay_cost.PROGRAMS["transformer of 4 layers, dropout"],
    "MLP of 7 thousand parameters": replay_cost.PROGRAMS["MLP of 7 thousand parameters"],
}


def plain_write(path, tensors, header):
    with open(path, "wb", buffering=0) as f:
        f.write(header)
        for t in tensors:
            rest = memoryview(t.detach().reshape(-1).numpy()).cast("B")
            while len(rest):
                rest = rest[f.write(rest) :]


def remove(path):
    """At once, so that the next one writes into memory that the machine has at hand: a virtual one is given the rest
    page by page."""
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def seconds(call, *words):
    began = time.perf_counter()
    call(*words)
    return time.perf_counter() - began


def child(name, rounds, folder):
    import torch

    from finitude import _native
    from finitude.capsules import capsule

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, shape = PROGRAMS[name]()
    x = torch.randn(shape)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        model.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    step()
    optimizer.step()
    state = [(f"state.{n}.{k}", "F32", v) for n, p in model.named_parameters() for k, v in optimizer.state[p].items()]
    tensors = [p for p in model.parameters()] + [v for _, _, v in state] + [x]
    header = b" " * 4096  # as long as one is
    rows = []

    def ours(path):
        _native.tape_start()
        stepped = seconds(step)
        _native.tape_stop()
        for key, p in model.named_parameters():
            _native.tape_name(p, "parameter", key)
            _native.tape_outcome("gradient", key, p.grad)
        began = time.perf_counter()
        why = _native.capsule_write_beside(
            path, "{}", 4 << 30, False, capsule.REPLAY_BELOW, None, state, capsule.PLAYER
        )
        waited = time.perf_counter() - began
        assert not why and _native.capsules_wait(300), why
        (done,) = _native.capsules_done()
        assert not done["why_not"] and done["replayed"] in ("identical", "not tried"), done
        return {
            "bytes": done["bytes"],
            "step": stepped,
            "waits": waited,
            "write": done["write_seconds"],
            "read_back": done["write_seconds"] + done["check_seconds"],
            "replay": done["replay_seconds"],
        }

    def plain(path):
        copies = []
        copied = seconds(lambda: copies.extend(t.detach().clone() for t in tensors))
        return {"copy": copied, "plain": seconds(plain_write, path, tensors, header)}

    for i in range(rounds + WARM_UP):
        a, b = (os.path.join(folder, f"{word}-{i}") for word in ("capsule", "plain"))
        row = {}
        for call, path in ((ours, a), (plain, b)) if i % 2 else ((plain, b), (ours, a)):
            row.update(call(path))
            remove(path)
        if i >= WARM_UP:
            rows.append(row)
    return rows


def cells(name, rows):
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}

    def ratio(a, b):
        found = sorted(row[a] / row[b] for row in rows)
        quarter = len(found) // 4
        return f"{statistics.median(found):.2f} ({found[quarter]:.2f} to {found[-1 - quarter]:.2f})"

    def ms(key):
        return f"{middle[key] * 1e3:.1f}" if middle[key] else ""

    # What a file costs that a capsule has four of drowns the bytes of a small one.
    large = middle["bytes"] > 1 << 20
    size = f"{middle['bytes'] / 2**20:.1f}" if large else f"{middle['bytes'] / 2**20:.2f}"
    return " | ".join(
        [
            f"| {name}",
            size,
            ms("step"),
            ms("waits"),
            ms("copy"),
            ratio("waits", "copy") if large else "",
            ms("plain"),
            ms("write"),
            ratio("write", "plain") if large else "",
            ms("read_back"),
            ratio("read_back", "plain") if large else "",
            ms("replay") + " |\n",
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=PAGE)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--child")
    words = parser.parse_args()
    if words.child is not None:
        (ROOT / "build").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
            print(json.dumps(child(words.child, words.rounds, folder)))
        return
    lines, load = [], os.getloadavg()[0]
    for name in PROGRAMS:
        done = subprocess.run(
            [sys.executable, __file__, "--child", name, "--rounds", str(words.rounds)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        lines.append(cells(name, json.loads(done.stdout)))
    head = HEAD.format(
        rounds=words.rounds,
        torch=importlib.metadata.version("torch"),
        machine=replay_cost.machine(),
        load=load,
        date=datetime.date.today(),
    )
    pathlib.Path(words.out).write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
