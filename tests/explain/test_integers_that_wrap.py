"""Integers that leave the range of their format: the report names their operation, and advises no clamp."""

import helpers

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for step in range(4):
    counts = torch.tensor([100, 120, 90, 110], dtype=torch.int8)
    total = counts * (1 if step < 2 else 2)  # wraps
    weight = total.float().sqrt()
    loss = (weight * net(torch.randn(4, 3)).squeeze().pow(2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_wrapped_integers_are_named(tmp_path):
    alarm = helpers.run(tmp_path, PROGRAM).the_alarm()
    assert "sqrt" in alarm["births"][0]["op"]
    assert "mul of int8 at" in alarm["cause"]["text"] and "-128 to 127 in 4 values" in alarm["cause"]["text"]
    assert any(e["outcome"] == "180 to 240" for e in alarm["cause"]["experiments"]), alarm["cause"]
    fix = alarm["fix"]
    line = (tmp_path / "train.py").read_text().splitlines()[fix["line"] - 1]
    assert "# wraps" in line and not fix["verified"] and not fix.get("diff"), fix
