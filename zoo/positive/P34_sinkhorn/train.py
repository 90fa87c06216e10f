import torch
from torch import nn


def sinkhorn(cost, epsilon, iterations=5):
    n, m = cost.shape
    a, b = torch.full((n,), 1.0 / n), torch.full((m,), 1.0 / m)
    kernel = torch.exp(-cost / epsilon)
    u = torch.ones(n)
    for _ in range(iterations):
        v = b / (kernel.t() @ u)
        u = a / (kernel @ v)
    return u[:, None] * kernel * v[None, :]


def main():
    torch.manual_seed(0)
    encoder = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    source, target = torch.randn(5, 3), torch.randn(5, 2) * 2
    schedule = [1.0, 1.0, 0.005, 0.005, 0.005]
    for step, epsilon in enumerate(schedule):
        cost = (encoder(source)[:, None] - target[None]).pow(2).sum(dim=2)
        plan = sinkhorn(cost, epsilon)
        loss = (plan * cost).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epsilon {epsilon}: transport cost {loss.item():.4f}")


main()
