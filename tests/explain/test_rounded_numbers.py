"""A number that was to keep a value from the edge of a domain, and that the format rounds to the edge."""

import pytest

import helpers

TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    p = torch.sigmoid(model(torch.randn(8, 4)) + (100 if step == 3 else 0))
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ROUNDED = {  # loss: cause class, what is said
    "(1 - p.clamp(1e-9, 1 - 1e-9)).log().mean()": ("log-of-zero", "1 - 1e-09 is 1 in float32"),
    "(1 - (p - 1e-9)).log().mean()": ("log-of-zero", "1 - 1e-09 is 1 in float32"),
    "torch.logit(p.clamp(1e-9, 1 - 1e-9)).mean()": ("log-of-zero", "1 - 1e-09 is 1 in float32"),
    "(1 / (1 + 1e-9 - p)).mean()": ("division-by-zero", "1 + 1e-09 is 1 in float32"),
    "torch.atanh(-p.clamp(max=1 - 1e-8)).mean()": ("domain-edge", "1 - 1e-08 is 1 in float32"),
    "torch.acos(p * (1 - 1e-8)).mean()": ("domain-edge", "1 - 1e-08 is 1 in float32"),
    "(1 - p.bfloat16().clamp(max=0.999)).log().mean()": ("half-precision-underflow", "1 - 0.001 is 1 in bfloat16"),
    "(1 - p.clamp(max=1)).log().mean()": ("log-of-zero", "log of an exact zero"),
}


@pytest.mark.parametrize("loss", ROUNDED)
def test_a_number_that_the_format_rounds_to_the_edge(tmp_path, loss):
    result = helpers.run(tmp_path, TRAINING.replace("LOSS", loss), "--on-alarm", "stop")
    alarm = result.the_alarm()
    cause, text, fix = alarm["cause"]["class"], alarm["cause"]["text"], alarm["fix"]["text"]
    assert cause == ROUNDED[loss][0] and ROUNDED[loss][1] in text, text
    rounds = " is 1 in " in ROUNDED[loss][1]
    assert (" is 1 in " in text) == rounds
    assert "lost to rounding" not in text
    assert ("can tell from 1, such as 1 " in fix) == rounds
