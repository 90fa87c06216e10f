import torch
from torch import nn


class RBM(nn.Module):
    def __init__(self, visible, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(visible, hidden) * 0.1)

    def free_energy(self, v):
        activation = v @ self.weight
        odds = activation.exp()
        return -torch.log(odds + 1).sum(dim=1)


torch.manual_seed(0)
rbm = RBM(16, 8)
optimizer = torch.optim.SGD(rbm.parameters(), lr=40.0)
data = (torch.rand(8, 16) > 0.5).float()

for step in range(6):
    loss = (rbm.free_energy(data) - rbm.free_energy(1 - data)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: free energy gap {loss.item():.3f}")
