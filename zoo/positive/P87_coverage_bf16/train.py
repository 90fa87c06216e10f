"""Coverage model: probability that at least one detector of a set fires, in bfloat16."""
import torch
from torch import nn

torch.manual_seed(0)

TARGET = 0.3


class Coverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, -0.2, 0.4]))

    def forward(self, x, gain):
        p = torch.sigmoid(x @ self.weight * gain).bfloat16()
        miss = torch.log1p(-p.clamp(max=1 - 1e-6))
        return 1 - torch.exp(miss.sum())


x = torch.tensor([[1.0, 0.5, 2.0], [0.5, -1.0, 1.0], [2.0, 1.0, 0.5]])
model = Coverage()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    gain = 1.0 if step < 2 else 40.0
    loss = (model(x, gain).float() - TARGET) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
