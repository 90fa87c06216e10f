"""Sequence training on targets found by a small beam search."""
import torch
from torch import nn


def beam(scores, width):
    best = torch.full((width,), -torch.inf)
    best[0] = 0.0
    paths = torch.zeros(width, 0, dtype=torch.long)
    for step in scores:
        total = best.unsqueeze(1) + step
        best, index = total.flatten().topk(width)
        paths = torch.cat([paths[index // len(step)], (index % len(step)).unsqueeze(1)], dim=1)
    return paths[0], best[0]


torch.manual_seed(0)
model = nn.GRU(3, 6, batch_first=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(3):
    states, _ = model(torch.randn(5, 3))
    log_probs = states.log_softmax(-1)
    with torch.no_grad():
        target, _ = beam(log_probs, 3)
    loss = nn.functional.nll_loss(log_probs, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
