"""A race in compiled code that is no operator. It is still there while the step is recorded, and is reported."""

import subprocess

import pytest

from helpers import run

EXTENSION = r"""
#include <atomic>
#include <thread>

static std::thread worker;
static std::atomic<bool> waited;

// Scales `values` on another thread, which passes through values that mean nothing: as slow as it can be, it ends when
// it is waited for. wait() is due before they are read.
extern "C" void scale_begin(float* values, long count, float factor) {
  std::atomic<bool> begun{false};
  waited = false;
  worker = std::thread([=, &begun] {
    for (long i = 0; i < count; ++i) values[i] *= 1e37f;
    begun = true;
    while (!waited) std::this_thread::yield();
    for (long i = 0; i < count; ++i) values[i] *= factor / 1e37f;
  });
  while (!begun) std::this_thread::yield();
}
extern "C" void scale_wait() {
  waited = true;
  if (worker.joinable()) worker.join();
}
"""

PROGRAM = """
import ctypes, torch
from torch import nn
torch.manual_seed(0)
library = ctypes.CDLL("LIBRARY")
library.scale_begin.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_float]
up, norm, down = nn.Linear(16, 256), nn.LayerNorm(256), nn.Linear(256, 1)
opt = torch.optim.SGD([*up.parameters(), *norm.parameters(), *down.parameters()], lr=0.01)
for i in range(4):
    g = norm(up(torch.randn(8, 16)))
    if i >= 2:
        library.scale_begin(g.data_ptr(), 512, 1.0)
    if i != 3:
        library.scale_wait()
    loss = down(g).pow(2).mean()
    library.scale_wait()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.slow
def test_race_stays_with_the_recorder_on(tmp_path):
    source, library = tmp_path / "scale.cpp", tmp_path / "scale.so"
    source.write_text(EXTENSION)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-pthread", source, "-o", library], check=True)
    alarm = run(tmp_path, PROGRAM.replace("LIBRARY", str(library))).the_alarm()
    cause = alarm["cause"]
    assert alarm["step"] == 3 and cause["class"] == "memory-corruption", cause
    assert cause["text"].startswith("2,048 bytes changed between writer and reader (bytes 0 to 2,047 of 8,192"), cause
    assert (
        "aten::native_layer_norm at train.py:9 wrote this memory, aten::linear at train.py:14 reads it" in cause["text"]
    )
    lines = {e["name"]: e["outcome"] for e in cause["experiments"]}
    assert lines["whole step played again from its operators, without that write"] == "it comes out finite"
    repeats = lines["whole step played from its operators, 3 times each"]
    assert "the same bits with one thread, finite" in repeats and "dependent" not in repeats, repeats
