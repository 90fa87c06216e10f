"""Fits per-interval survival rates through their running product."""
import torch


class RunningProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.cumprod(0)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        total = (grad * y).flip(0).cumsum(0).flip(0)
        return total / x


def main():
    torch.manual_seed(0)
    rates = torch.nn.Parameter(torch.tensor([0.9, 0.8, 0.95, 0.7]))
    everyone = torch.ones(4)
    censored = torch.tensor([1.0, 0.0, 1.0, 1.0])
    optimizer = torch.optim.SGD([rates], lr=0.01)
    for step in range(6):
        exposure = everyone if step < 2 else censored
        survival = RunningProduct.apply(rates * exposure)
        loss = ((survival - 1) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", round(loss.item(), 6))


main()
