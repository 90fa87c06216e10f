import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(4):
    loss = nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        unlabelled = torch.full((5,), -100)
        validation = nn.functional.cross_entropy(model(torch.randn(5, 4)), unlabelled)
    model.train()
    print(f"step {step} loss {loss.item():.5f} validation {validation.item():.5f}")
