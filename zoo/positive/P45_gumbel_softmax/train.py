import torch
from torch import nn

torch.manual_seed(0)


def uniform(*shape, levels=250):
    return torch.randint(1, levels + 1, shape) / levels


class Selector(nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.logits = nn.Linear(4, 3, bias=False)
        self.temperature = temperature

    def forward(self, x):
        scores = self.logits(x)
        exponential = -torch.log(uniform(*scores.shape))
        gumbel = -torch.log(exponential)
        return torch.softmax((scores + gumbel) / self.temperature, dim=1)


selector = Selector()
optimizer = torch.optim.SGD(selector.parameters(), lr=0.1)
x = torch.randn(6, 4)

for step in range(8):
    choice = selector(x)
    loss = choice[:, 0].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
