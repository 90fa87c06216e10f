"""Operators such as gather work in memory of their own, which holds at first what chance left there: no verdict may
depend on that."""

import pytest

from helpers import run

# Sigmoid gates that are 0 for one row, of which the largest are taken and divided by their sum: 0 / 0 in any format.
GATE = """
import ctypes
import torch
ctypes.CDLL(None).mallopt(-6, {fill})
torch.manual_seed(0)
router, out = torch.nn.Linear(12, 5, bias=False), torch.nn.Linear(2, 3)
opt = torch.optim.SGD([*router.parameters(), *out.parameters()], lr=0.1)
for step in range(3):
    x = torch.randn(4, 6, 12)
    low = torch.zeros(4, 6, 1, dtype=torch.bfloat16)
    low[2, 3] = {low} if step == 1 else 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gates = torch.sigmoid(router(x) - low)
        gates = gates.gather(-1, gates.topk(2, dim=-1).indices)
        {divide}
        loss = out(gates).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
SUM = "gates = gates / gates.sum(-1, keepdim=True)"


@pytest.mark.parametrize("fill", [60, 255])
def test_previous_memory_content_does_not_affect_the_cause(tmp_path, fill):
    got = run(tmp_path, GATE.format(fill=fill, low=300, divide=SUM))
    alarm = got.the_alarm()
    assert (alarm["births"][0]["op"], alarm["cause"]["class"]) == ("aten::div", "division-by-zero"), got.text()
    assert alarm["fix"]["verified"] and "clamp" in alarm["fix"]["text"], alarm["fix"]


def test_with_an_epsilon_it_is_silent(tmp_path):
    run(tmp_path, GATE.format(fill=60, low=300, divide=SUM.replace("True)", "True).clamp(min=1e-6)"))).assert_silent()
