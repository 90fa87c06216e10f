"""NaN that marks what is missing, and that nanmean leaves out: the fault is a mean of nothing, not the mark."""

import helpers

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for step in range(4):
    ratings = torch.rand(8, 5)
    ratings[torch.rand(8, 5) < 0.3] = float("nan")
    ratings[:, 0] = 0.5
    if step == 2:
        ratings[5] = float("nan")
    target = ratings.nanmean(1)  # birth
    loss = (net(torch.randn(8, 3)).squeeze(-1) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_nanmean_of_nothing_is_the_birth(tmp_path):
    alarm = helpers.run(tmp_path, PROGRAM).the_alarm()
    birth = alarm["births"][0]
    assert "# birth" in birth["source"] and birth["rows"] == [5], birth
    assert alarm["cause"]["class"] == "division-by-zero", alarm["cause"]
    assert "nanmean where every element is NaN" in alarm["cause"]["text"]
