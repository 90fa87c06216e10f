"""Half-precision attention with an additive bias built from a keep mask."""
import torch
from torch import nn

torch.manual_seed(0)
query = nn.Parameter(torch.randn(8, 8) * 0.3)
key = nn.Parameter(torch.randn(8, 8) * 0.3)
optimizer = torch.optim.SGD([query, key], lr=0.1)
fill_values = [-1e4, -1e10, -1e10, -1e10, -1e10]

for step, fill in enumerate(fill_values):
    x = torch.randn(2, 6, 8)
    keep = torch.ones(2, 1, 6, dtype=torch.half)
    keep[1, :, 4:] = 0
    scores = ((x @ query) @ (x @ key).transpose(1, 2)).half()
    bias = (1 - keep) * torch.tensor(fill).half()
    probs = torch.softmax(scores + bias, -1)
    context = probs.float() @ x
    loss = context.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
