"""Where an optimizer of the program's own computes: its methods are phase optimizer, whoever calls them; functions that
are handed one are not."""

import pytest

import helpers

# A two-step optimizer divides by the norm of gradients that are all zero in step 2.
TWO_STEPS = """
import torch

class Near(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def climb(self):
        self.norm = sum(p.grad.norm() for p in self.param_groups[0]["params"])
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad / self.norm)  # there

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(self.param_groups[0]["lr"] * p.grad)

def climb(optimizer):
    with torch.no_grad():
        norm = sum(p.grad.norm() for p in optimizer.param_groups[0]["params"])
        for p in optimizer.param_groups[0]["params"]:
            p.add_(p.grad / norm)  # handed

w = torch.nn.Parameter(torch.ones(3))
optimizer = Near([w], lr=0.1)
for i in range(5):
    x = torch.full((3,), 0.0 if i == 2 else 1.0)
    optimizer.zero_grad()
    (w * x).square().sum().backward()
    CLIMB
    optimizer.zero_grad()
    (w * x).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("climb", "phase", "comment"),
    [("optimizer.climb()", "optimizer", "# there"), ("climb(optimizer)", "forward", "# handed")],
)
def test_a_method_of_an_optimizer_is_the_optimizer(tmp_path, climb, phase, comment):
    got = helpers.run(tmp_path, TWO_STEPS.replace("CLIMB", climb))
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], birth["phase"], birth["op"]) == (2, phase, "aten::div"), got.text()
    assert birth["source"].endswith(comment) and alarm["cause"]["class"] in (
        "optimizer-arithmetic",
        "division-by-zero",
    ), got.text()
    if phase == "optimizer":
        assert "climb of the optimizer" in alarm["cause"]["text"], got.text()
