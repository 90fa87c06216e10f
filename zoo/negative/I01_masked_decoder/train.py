import torch
from torch import nn


class CausalHead(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)) == 0)

    def forward(self, x, padding):
        scores = self.query(x) @ self.key(x).transpose(1, 2) * x.shape[-1] ** -0.5
        scores = scores.masked_fill(self.mask | padding[:, None, :], float("-inf"))
        return scores.softmax(-1) @ self.value(x)


torch.manual_seed(0)
model = CausalHead(8, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(4, 6, 8)
    padding = torch.arange(6) >= torch.tensor([6, 5, 3, 1])[:, None]
    loss = model(x, padding)[~padding].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
