import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weight = torch.ones(3)
for step in range(5):
    x = torch.randn(9, 5)
    y = torch.arange(9) % (2 if step == 2 else 3)
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y, weight=weight)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    counts = torch.bincount(y, minlength=3)
    hits = torch.bincount(y[scores.argmax(1) == y], minlength=3)
    recall = hits / counts
    weight = 2 - recall
    print(f"step {step} loss {loss.item():.5f} recall {recall.tolist()}")
