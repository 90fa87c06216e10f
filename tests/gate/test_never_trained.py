"""Parameters that no step of their optimizer wrote are reported at its end, with their names."""

from helpers import run

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare, self.frozen = (nn.Linear(2, 2) for _ in range(3))
        self.frozen.requires_grad_(False)
    def forward(self, x):
        return self.used(x)

def train(make, steps, every=1):
    model = Net()
    optimizer = make(model.parameters())
    for i in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(4, 2))
        (out + model.spare(out) if i % every == every - 1 and every > 1 else out).square().mean().backward()
        optimizer.step()
    return model, optimizer

train(lambda p: torch.optim.SGD(p, lr=1e-3), 420)
train(lambda p: torch.optim.SGD(p, lr=1e-3), 300)
train(lambda p: torch.optim.SGD(p, lr=1e-3), 420, every=410)
kept = train(lambda p: torch.optim.AdamW(p, lr=1e-3), 420)
"""


def test_never_written_parameters_are_an_advisory(tmp_path):
    done = run(tmp_path, SCRIPT)
    assert done.code == 0 and done.report["outcome"] == "clean", done.text()
    found = done.advisories("never-trained")
    # The second has too few steps, the third uses its part once.
    assert [a["text"].split(" ")[5] for a in found] == ["SGD", "AdamW"], found
    for one in found:
        assert one["text"].startswith("2 of 4 parameters of ") and "others up to" in one["text"]
        assert "spare.weight, spare.bias" in one["text"] and "frozen" not in one["text"]
