"""--guard-memory: a second process with guard zones around tensors' memory names who wrote out of bounds."""

from helpers import run

TRAIN = """
import ctypes, torch
from torch import nn
torch.manual_seed(0)
up, norm, down = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 1)
opt = torch.optim.SGD([*up.parameters(), *norm.parameters(), *down.parameters()], lr=1e-4)
for i in range(5):
    h = up(torch.randn(8, 16))
    made = []
    for _ in range(40):
        table = torch.ones(8, 64)
        made.append((table, norm(h)))
    if i == 3:
        WRITE
    loss = down(sum(m[1] for m in made)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
# With guard zones there is no such neighbour, and what is written is the zone.
BEHIND = """gaps = [(g.data_ptr() - t.data_ptr(), n) for n, (t, _) in enumerate(made) for _, g in made]
        gap, n = min(one for one in gaps if one[0] >= 2048)  # where memory lies differs from run to run
        ctypes.memset(made[n][0].data_ptr() + (gap if gap < 2560 else 2112), 0x7e, 256)"""
FOUND = (
    "256 bytes were written from byte 64 behind the end of the result of aten::ones at train.py:10 (2,048 bytes), "
    "after aten::layer_norm at train.py:11 and before aten::add at train.py:16, by code that is no operator"
)


def test_writer_out_of_bounds_is_named(tmp_path):
    got = run(tmp_path, TRAIN.replace("WRITE", BEHIND), "--guard-memory")
    alarm = got.the_alarm()
    assert alarm["step"] == 3 and alarm["cause"]["class"] == "memory-corruption", got.text()
    assert alarm["cause"]["text"].startswith(FOUND), alarm["cause"]["text"]
    assert alarm["rerun_by"] == "restart" and "with guard zones around the memory" in alarm["rerun_text"], alarm


def test_overflow_is_still_an_overflow(tmp_path):
    got = run(tmp_path, TRAIN.replace("WRITE", "made[0] = (table, made[0][1] * 1e30)"), "--guard-memory")
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "overflow" and alarm["rerun"] == "persistent", got.text()
