"""Hinge classifier trained with sharpness-aware minimisation."""
import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, dict(rho=rho, **options))
        self.base = base(self.param_groups, **options)

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            scale = group["rho"] / norm
            for p in group["params"]:
                self.state[p]["shift"] = p.grad * scale
                p.add_(self.state[p]["shift"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["shift"])
        self.base.step()
        self.zero_grad()


def hinge(score, label):
    return torch.relu(1 - label * score.squeeze(1)).mean()


def main():
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    with torch.no_grad():
        model.weight.fill_(0.2)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05)
    for step in range(6):
        x = torch.randn(12, 5)
        label = x.sum(1).sign()
        if step == 3:
            x = label[:, None] * (x.abs() + 10)
        hinge(model(x), label).backward()
        optimizer.first_step()
        loss = hinge(model(x), label)
        loss.backward()
        optimizer.second_step()
        print(f"step {step} loss {loss.item():.5f}")


main()
