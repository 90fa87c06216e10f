"""Births in the backward of what was written in place through a view: autograd hides the operator's node in
CopySlices."""

import pytest

import helpers

LOOP = """
import torch
torch.manual_seed(0)
w = torch.nn.Parameter(torch.rand(6) + 0.1)
opt = torch.optim.SGD([w], lr=0.01)
for i in range(6):
    scale = 0.0 if i == 3 else 1.0
    y = w * scale
    {writes}
    opt.zero_grad()
    y.sum().backward()
    opt.step()
"""
WRITES = {
    "sqrt_ of a slice": ("y[:2].sqrt_()", "aten::sqrt_"),
    "pow_ of a column": ("y = y.clone().view(3, 2); y[:, 1].pow_(0.5)", "aten::pow_"),
    "a view of a view": ("y = y.clone().view(3, 2); y.t()[0].sqrt_()", "aten::sqrt_"),
    "an in-place division": ("y[1:].div_(y[:-1].clone() * scale + 1.0 - scale); y[2:4].rsqrt_()", "aten::rsqrt_"),
}


@pytest.mark.parametrize("writes, op", WRITES.values(), ids=WRITES)
def test_line_writing_through_the_view_is_the_birth(tmp_path, writes, op):
    got = helpers.run(tmp_path, LOOP.replace("{writes}", writes))
    birth = got.the_alarm()["births"][0]
    assert birth["source"] == writes, got.text()
    if birth["phase"] == "backward":
        assert birth["forward"]["op"] == op, got.text()
    else:
        assert birth["op"] == op, got.text()
