"""Lines inside functions that torch.jit compiled, forward and backward, and of what torch.jit.trace recorded."""

import pytest

from helpers import run

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
    def forward(self, x):
        y = x * self.weight
        return part(y)
def part(y):
    z = y + 1.0
    FUNCTION
    return w * 0.5
COMPILE
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    x = torch.rand(4, 3) + 1.0
    if i == STEP: x = SPOILT
    loss = model(x).mean()                                  # the call
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
COMPILED = {
    "script": "part = torch.jit.script(part); model = Own()",
    "script of a module": "part = torch.jit.script(part); model = torch.jit.script(Own())",
    "trace": "model = torch.jit.trace(Own(), torch.ones(4, 3))",
}
FORWARD = ("w = torch.log(z - 1.0)      # here", "x * 0.0")
BACKWARD = ("w = torch.sqrt(z - 1.0)     # here", "x * 0.0")


def lines(text, words):
    return [n for n, line in enumerate(text.strip().splitlines(), 1) if words in line]


# An optimised script of a module runs the same graph forward as an optimised script of a function.
@pytest.mark.parametrize(
    "how, function, spoilt, step",
    [
        pytest.param(how, *given, step, id=f"{name}-{how}-{step}")
        for how in COMPILED
        for name, given in (("forward", FORWARD), ("backward", BACKWARD))
        for step in (2, 6)
        if (how, name, step) != ("script of a module", "forward", 6)
    ],
)
def test_the_line_inside(tmp_path, how, function, spoilt, step):
    """At first it is interpreted, later it has been optimised and differentiated as a whole."""
    text = (
        TRAIN.replace("FUNCTION", function)
        .replace("SPOILT", spoilt)
        .replace("STEP", str(step))
        .replace("COMPILE", COMPILED[how])
    )
    got = run(tmp_path, text)
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert alarm["step"] == step and alarm["capsule"] and not got.watched["not_watched"], got.text()
    assert birth["line"] in lines(text, "# here"), (birth, alarm["fix"])
    assert birth["phase"] == ("forward" if "log" in function else "backward")
    assert alarm["fix"]["line"] in lines(text, "# here"), alarm["fix"]
