import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, visible):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        return weights @ self.v(x)


torch.manual_seed(0)
model = Attention(6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    x = torch.randn(3, 5, 6)
    length = torch.tensor([5, 4, 3]) if step < 2 else torch.tensor([5, 4, 0])
    visible = torch.arange(5) < length[:, None, None]
    used = length > 0
    loss = model(x, visible.expand(3, 5, 5))[used].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
