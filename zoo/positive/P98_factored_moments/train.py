"""Factored second moments (Adafactor style) for a model with a disabled auxiliary branch."""
import torch
from torch import nn


class Factored(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, decay=0.9):
        super().__init__(params, dict(lr=lr, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state, squared = self.state[p], p.grad.pow(2)
                if not state:
                    state["row"], state["col"] = squared.mean(1), squared.mean(0)
                state["row"].lerp_(squared.mean(1), 1 - group["decay"])
                state["col"].lerp_(squared.mean(0), 1 - group["decay"])
                row_factor = (state["row"] / state["row"].mean()).rsqrt()
                col_factor = state["col"].rsqrt()
                p.sub_(group["lr"] * p.grad * row_factor[:, None] * col_factor[None, :])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Parameter(torch.randn(4, 3))
        self.auxiliary = nn.Parameter(torch.randn(4, 3))

    def forward(self, x, auxiliary_weight=0.0):
        return x @ self.main + auxiliary_weight * (x @ self.auxiliary)


def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = Factored(net.parameters())
    for step in range(4):
        x = torch.randn(16, 4)
        loss = (net(x) - x[:, :3]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
