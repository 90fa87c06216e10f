"""Memory that changed with no operator to write it: whose memory lies next to it, who had it before, and what backward
reads through memory that NumPy shares."""

import re

import pytest

from helpers import run
from memory_programs import BEHIND, TRAIN


def lines_of(alarm):
    return {e["name"]: e["outcome"] for e in alarm["cause"]["experiments"]}


def test_neighbour_of_an_overwritten_tensor_is_named(tmp_path):
    alarm = run(tmp_path, TRAIN.replace("WRITE", BEHIND)).the_alarm()
    assert alarm["step"] == 3 and alarm["cause"]["class"] == "memory-corruption", alarm["cause"]
    assert alarm["cause"]["text"].startswith("256 bytes changed between writer and reader (bytes 0 to 255 of 130,816")
    lines = lines_of(alarm)
    assert re.fullmatch("0x[0-9a-f]+", lines["address"]), lines
    (before,) = [text for name, text in lines.items() if re.fullmatch(r"before that tensor, \d+ bytes away", name)]
    assert before == "the result of aten::ones at train.py:11 (130,816 bytes), still in use", lines


# A tensor with pages of its own (M_MMAP_THRESHOLD) is put where one that was given back had been.
AFTER_FREE = """
import ctypes, torch
from torch import nn
torch.manual_seed(0)
ctypes.CDLL(None).mallopt(-3, 65536)
up, norm, down, wide = nn.Linear(16, 4088), nn.LayerNorm(4088), nn.Linear(4088, 1), torch.ones(8, 4096)
opt = torch.optim.SGD([*up.parameters(), *norm.parameters(), *down.parameters()], lr=1e-6)
for i in range(6):
    h, made = up(torch.randn(8, 16)), []
    for _ in range(40):
        scratch = torch.sin(wide)
        old = scratch.data_ptr()
        del scratch
        made.append(norm(h))
        if 0 <= made[-1].data_ptr() - old <= 4096: break
    if i == 3:
        ctypes.memset(made[-1].data_ptr() + 64, 0x7e, 1024)
    loss = down(made[-1]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_earlier_owner_of_the_memory_is_named(tmp_path):
    alarm = run(tmp_path, AFTER_FREE).the_alarm()
    assert alarm["cause"]["class"] == "memory-corruption", alarm["cause"]
    lines = lines_of(alarm)
    assert lines["had that memory before"].startswith(
        "the result of aten::sin at train.py:10 (131,072 bytes), given back"
    )


SHARED = """
import numpy as np, torch
from torch import nn
torch.manual_seed(0)
buf = np.zeros((8, 64), dtype=np.float32)
stage = torch.from_numpy(buf)
net, head = nn.Linear(16, 64), nn.Linear(64, 1)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-4)
for i in range(6):
    x = torch.randn(8, 16)
    stage.copy_(torch.randn(8, 64))
    h = net(x) * stage
    loss = head(h).pow(2).mean() * 100
    if i == 3:
        buf[2:4] = 3e38
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_numpy_writes_what_backward_reads(tmp_path, level):
    """Finite, in an activation that forward saved: only backward may read it, and nobody may write it."""
    alarm = run(tmp_path, SHARED, "--level", level).the_alarm()
    cause = alarm["cause"]
    assert alarm["step"] == 3 and cause["class"] == "memory-corruption", cause
    assert cause["text"].startswith("512 bytes changed between writer and reader (bytes 512 to 1,023 of 2,048"), cause
    assert "aten::copy_ at train.py:10 wrote this memory" in cause["text"]
    assert "in the backward of aten::mul at train.py:11 reads it" in cause["text"]
    assert "instead of from_numpy" in alarm["fix"]["text"]
