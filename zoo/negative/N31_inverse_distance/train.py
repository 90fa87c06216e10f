"""Learns charges from the potentials they cause on each other."""
import torch

torch.manual_seed(0)

position = torch.randn(8, 3)
true_charge = torch.randn(8)
charge = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([charge], lr=0.1)


def potential(q):
    distance = (position[:, None] - position[None, :]).pow(2).sum(-1).sqrt()
    inverse = 1 / distance
    inverse.fill_diagonal_(0)
    return inverse @ q


observed = potential(true_charge)
for step in range(6):
    loss = (potential(charge) - observed).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
