"""Finite values that came into memory without an operator: writer and reader do not agree, and what overflows later is
not the cause."""

import pytest

from helpers import run

TRAIN = """
import ctypes, torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 256), nn.LayerNorm(256), nn.Linear(256, 1)
        self.i = 0
    def forward(self, x):
        g = self.norm(self.up(x))           # the writer
        if self.i == 3:
            CHANGE
        self.i += 1
        return self.down(g)                 # the reader
def loss_of(out):
    return LOSS
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    x = torch.randn(8, 16)
    loss = loss_of(model(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def explained(folder, change, loss="out.pow(2).mean()"):
    text = TRAIN.replace("CHANGE", change.replace("\n", "\n" + " " * 12)).replace("LOSS", loss)
    return run(folder, text)


@pytest.mark.parametrize(
    "change, bytes_",
    [
        (
            "ctypes.memset(g.data_ptr(), 0x7e, 2048)",
            "2,048 bytes changed between writer and reader (bytes 0 to 2,047 of 8,192, without a "
            "gap; a multiple of 2,048)",
        ),
        (
            "ctypes.memset(g.data_ptr() + 100, 0x7d, 1000)",
            "1,000 bytes changed between writer and reader (bytes 100 to 1,099 of 8,192, without a gap)",
        ),
        (
            "for at in (0, 4096): ctypes.memset(g.data_ptr() + at, 0x7e, 512)",
            "1,024 bytes changed between writer and reader (bytes 0 to 4,607 of 8,192, with gaps; a multiple of 512)",
        ),
    ],
)
def test_finite_garbage_is_reported_with_its_bytes(tmp_path, change, bytes_):
    got = explained(tmp_path, change)
    alarm = got.the_alarm()
    assert alarm["step"] == 3 and alarm["cause"]["class"] == "memory-corruption", got.text()
    text = alarm["cause"]["text"]
    assert text.startswith(bytes_), text
    assert (
        "no operator wrote there" in text and "layer_norm at train.py:10" in text and "linear at train.py:14" in text
    ), text
    assert "proven" not in got.err.partition("cause")[2] and alarm["fix"]["line"] == 14
    assert [e["outcome"] for e in alarm["cause"]["experiments"] if "without that write" in e["name"]] == [
        "it comes out finite"
    ]


def test_zeros_that_nobody_wrote(tmp_path):
    got = explained(tmp_path, "ctypes.memset(g.data_ptr(), 0, 8192)", "torch.log((out - model.down.bias).abs().sum())")
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "memory-corruption" and "8,192 bytes changed" in alarm["cause"]["text"], (
        got.text()
    )


def test_what_backward_reads_again(tmp_path):
    """The activation is changed between forward and backward; the forward pass was right."""
    text = TRAIN.replace("CHANGE", "self.kept = g").replace("LOSS", "out.mean() * 1e4")
    text = text.replace(
        "    opt.zero_grad()", "    if i == 3: ctypes.memset(model.kept.data_ptr(), 0x7e, 8192)\n    opt.zero_grad()"
    )
    alarm = run(tmp_path, text).the_alarm()
    assert alarm["cause"]["class"] == "memory-corruption" and "8,192 bytes changed" in alarm["cause"]["text"], alarm[
        "cause"
    ]


INNOCENT = {
    "numpy": "g = g.detach().clone(); g.numpy()[:2] = 3e19",
    "through a view": "g = g.detach().clone(); g.view(-1)[:64].fill_(3e19)",
    "foreach": "g = g.detach().clone(); torch._foreach_mul_([g[0], g[1]], 3e19)",
    "set_": "h = torch.full_like(g, 3e19).detach(); g = g.detach(); g.set_(h.untyped_storage(), 0, "
    "g.shape, g.stride())",
    "resize_": "g = g.detach().clone(); g.resize_(4, 256).fill_(3e19)",
    "memory used again": "g = g.detach() * 1.0; del x; g = torch.full((8, 256), 3e19) * 1.0",
    "an out of an operator": "g = g.detach().clone(); torch.mul(g, 3e19, out=g)",
}


@pytest.mark.parametrize("change", INNOCENT.values(), ids=INNOCENT)
def test_what_the_program_wrote_itself_is_no_corruption(tmp_path, change):
    """Large, and written in a way that is its own: what overflows then is an overflow."""
    got = explained(tmp_path, change)
    assert got.the_alarm()["cause"]["class"] not in ("memory-corruption", "unknown"), got.text()


def test_healthy_run_with_all_write_kinds_is_silent(tmp_path):
    explained(tmp_path, "ctypes.memset(g.data_ptr(), 0x3f, 512)").assert_silent()
