import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 8) * 0.5)
        self.b = nn.Parameter(torch.randn(8, 1) * 0.5)

    def forward(self, z, offset):
        return torch.relu(z @ self.a + offset) @ self.b


def gradient_penalty(critic, z, offset):
    z = z.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(critic(z, offset).sum(), z, create_graph=True)
    squared = grad.pow(2).sum(dim=1)
    norm = torch.sqrt(squared)
    return (norm - 1).pow(2).mean()


torch.manual_seed(0)
critic = Critic()
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
samples = torch.randn(6, 4)

for step in range(5):
    offset = 0.5 if step < 2 else -100.0
    loss = gradient_penalty(critic, samples, offset) + critic(samples, offset).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} critic loss {loss.item():.4f}")
