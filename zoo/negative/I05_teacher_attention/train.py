import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.MultiheadAttention(8, 2, batch_first=True)
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(4, 5, 8)
    length = torch.tensor([5, 0, 3, 2])
    padding = torch.arange(5) >= length[:, None]
    with torch.no_grad():
        target, _ = teacher(x, x, x, key_padding_mask=padding)
    used = length > 0
    loss = (student(x[used]) - target[used]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
