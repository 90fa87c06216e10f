"""What a step reads of the one before though nobody holds it any more: a second run reads the same."""

import pytest

from helpers import run

pytestmark = pytest.mark.fast

# The loss of the last step is part of this one: with another value in its place all the bits are others.
SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1).to(TYPE)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def main():
    loss = torch.ones(SHAPE, dtype=TYPE)
    for step in range(6):
        x = torch.rand(3, 4).to(TYPE) * (0 if step == 4 else 1)
        assert loss.shape == torch.Size(SHAPE) and loss.dtype == TYPE and not (step and type(loss) is not torch.Tensor)
        part = (torch.log(x.sum(1)) - model(x).squeeze(1)).abs().mean().expand(SHAPE) * (loss.detach() + 1)
        loss = part * 1
        opt.zero_grad()
        loss.backward(torch.ones_like(loss))
        opt.step()
        del part
main()
"""


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", ["()", "(1,)", "(1, 1)", "(3,)"])
def test_a_second_run_reads_it(tmp_path, kind, shape):
    got = run(tmp_path, SCRIPT.replace("TYPE", f"torch.{kind}").replace("SHAPE", shape))
    alarm = got.alarms[0]
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "rewind", True), got.text()
    assert alarm["births"][0]["op"] == "aten::log" and "torch.log(" in alarm["births"][0]["source"], got.text()
