"""Single-head self-attention over padded sequences."""
import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)

    def forward(self, x, padding):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(padding[:, None, :], float("-inf"))
        attention = torch.softmax(scores, -1)
        return attention @ self.v(x)


batch, length, width = 2, 5, 8
model = Attention(width)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
position = torch.arange(length)
for step in range(6):
    x = torch.randn(batch, length, width)
    lengths = torch.tensor([5, 3] if step < 2 else [5, 0])
    padding = position[None, :] >= lengths[:, None]
    out = model(x, padding)
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
