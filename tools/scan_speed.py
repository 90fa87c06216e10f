"""How fast `finitude scan` reads a checkpoint that is in the page cache, beside reading it and doing nothing with it.

    python tools/scan_speed.py [--gb 2] [--times 5] [--folder DIR]

For float32 and bfloat16, prints a row of the table in docs/checkpoints.md: the median of some rounds, in which both
take turns. Reading: read(2) into one buffer of 1 MiB, which is the fastest of 128 KiB to 8 MiB here."""

import argparse
import os
import statistics
import subprocess
import tempfile
import time

import torch

from finitude.base import programs

BUFFER = bytearray(1 << 20)


def write(path, dtype, gb):
    """Layers of 64 MB, as a model has them, and the second moments of one in eight."""
    count = max(1, int(gb * 1e9 / 64e6))
    size = int(64e6) // torch.empty(0, dtype=dtype).element_size()
    layer = torch.rand(size).to(dtype)
    names = [f"layers.{i}." + ("exp_avg_sq" if i % 8 == 0 else "weight") for i in range(count)]
    torch.save({name: layer.clone() for name in names}, path)


def read_once(path):
    with open(path, "rb", buffering=0) as file:
        while file.readinto(BUFFER):
            pass


def scan_once(path):
    subprocess.run([programs.path_of(programs.OFFLINE), "scan", "--quiet", path], check=True)


def gb_per_s(function, path):
    began = time.perf_counter()
    function(path)
    return os.path.getsize(path) / 1e9 / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--folder", help="where the file is written and removed again")
    asked = parser.parse_args()
    print("| dtype | file, GB | read, GB/s | scan, GB/s | scan / read |\n|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            path = os.path.join(folder, "checkpoint.pt")
            write(path, dtype, asked.gb)
            read_once(path)
            rounds = [(gb_per_s(read_once, path), gb_per_s(scan_once, path)) for _ in range(asked.times)]
            read, scan = (statistics.median(column) for column in zip(*rounds, strict=True))
            share = statistics.median(s / r for r, s in rounds)
            name, size = str(dtype).removeprefix("torch."), os.path.getsize(path) / 1e9
            print(f"| {name} | {size:.1f} | {read:.1f} | {scan:.1f} | {share:.2f} |")


if __name__ == "__main__":
    main()
