"""Regression with missing targets, dropped before the loss."""
import torch

torch.manual_seed(0)

weight = torch.nn.Parameter(torch.zeros(4, 1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    y = x.sum(1, keepdim=True)
    y[step % 8] = float("nan")
    known = ~torch.isnan(y)
    loss = ((x @ weight)[known] - y[known]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
