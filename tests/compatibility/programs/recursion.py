"""A curriculum by recursion: each level calls itself until it is good enough, then the next level."""
import torch
from torch import nn

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.01)


def task(level, attempt):
    x = torch.rand(10, 3) * level
    if (level, attempt) == (2, 1):
        x[0] = -1e-3
    return x, x.log1p().sum(1, keepdim=True)


def learn(level, attempt=0, losses=()):
    if level > 3:
        return losses
    x, y = task(level, attempt)
    out = model(x)
    relative = (out - y).abs() / torch.relu(x).amax(1, keepdim=True)  # birth
    loss = relative.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"level {level} attempt {attempt} loss {loss.item():.6f}")
    if attempt < 3:
        return learn(level, attempt + 1, (*losses, round(loss.item(), 6)))
    return learn(level + 1, 0, losses)


print(learn(1))
