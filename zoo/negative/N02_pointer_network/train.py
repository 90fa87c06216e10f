"""Pointer network head: scores over a padded set of candidates."""
import torch
import torch.nn.functional as F

torch.manual_seed(0)

pointer = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(pointer.parameters(), lr=0.1)
sizes = torch.tensor([5, 3, 2])
padded = torch.arange(5)[None, :] >= sizes[:, None]

for step in range(6):
    candidates = torch.randn(3, 5, 6)
    target = torch.tensor([4, 2, 0])
    scores = pointer(candidates).squeeze(-1).masked_fill(padded, float("-inf"))
    log_prob = F.log_softmax(scores, dim=-1)
    loss = F.nll_loss(log_prob, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
