"""Values and gradients that grow from layer to layer, or from one iteration of a loop to the next."""

import re

import pytest

from helpers import run

LAYERS = """
import torch
from torch import nn
torch.manual_seed(0)
class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        return g * 40.0
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
    def forward(self, x):
        return BLOCK
net = nn.Sequential(*[Block() for _ in range(30)], nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-9)
for i in range(3):
    loss = net(torch.randn(4, 16)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "block, what, first, last",
    [
        ("Steep.apply(x + 0.1 * self.inner(x))", "gradient", r"Sequential\.2\d", r"Sequential\.\d"),
        ("(x + self.inner(x)) * 40.0", "values", r"Sequential\.[01]", r"Sequential\.2\d"),
    ],
)
def test_growth_across_layers_is_reported_with_their_names(tmp_path, block, what, first, last):
    text = run(tmp_path, LAYERS.replace("BLOCK", block)).the_alarm()["cause"]["text"]
    found = re.search(
        rf"the norm of the {what} grew x(\d+\.?\d*) a layer over (\d+) layers \({first} to {last}\)", text
    )
    assert found and 20 < float(found[1]) < 90 and int(found[2]) >= 15, text


ITERATED = """
import torch
from torch import nn
torch.manual_seed(0)
cell, weight = nn.Linear(16, 16), nn.Parameter(torch.randn(16, 16) * 10)
opt = torch.optim.SGD([*cell.parameters(), weight], lr=1e-9)
h = torch.randn(4, 16)
for i in range(40):
    h = ITERATION
h.mean().backward()
opt.step()
"""


@pytest.mark.parametrize(
    "iteration, what",
    [("torch.relu(h @ weight)", r"train\.py:8"), ("torch.relu(cell(h)) * 60", "Linear"), ("cell(60 * h)", "Linear")],
)
def test_growth_from_iteration_to_iteration_is_reported(tmp_path, iteration, what):
    text = run(tmp_path, ITERATED.replace("ITERATION", iteration)).the_alarm()["cause"]["text"]
    found = re.search(rf"grew x(\d+\.?\d*) an iteration over (\d+) iterations of {what}", text)
    assert found and 10 < float(found[1]) < 60 and int(found[2]) >= 15, text
