import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x, padding):
        mixed, weights = self.attention(x, x, x, key_padding_mask=padding)
        return self.out(mixed.mean(1)), weights


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(4, 5, 8)
    length = torch.tensor([5, 0 if step == 2 else 1, 3, 2])
    padding = torch.arange(5) >= length[:, None]
    scores, _ = model(x, padding)
    used = length > 0
    loss = nn.functional.cross_entropy(scores[used], torch.zeros(4, dtype=torch.long)[used])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
