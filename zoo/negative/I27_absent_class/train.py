import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = torch.full((4, 3), float("nan"))
for step in range(4):
    x, y = torch.randn(8, 5), torch.randint(0, 2, (8,))
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hit = scores.argmax(1) == y
    for c in range(3):
        history[step, c] = (hit & (y == c)).sum() / (y == c).sum()
    print(f"step {step} loss {loss.item():.5f} recall {history[step].nanmean().item():.3f}")
