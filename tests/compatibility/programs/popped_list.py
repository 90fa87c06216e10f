"""A work list that batches are taken out of, and put back at its far end once; the loop ends where it is empty."""
import collections

import torch

torch.manual_seed(21)
net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
work = collections.deque((torch.randn(10, 6), torch.randint(0, 3, (10,))) for _ in range(8))
work[7] = (work[7][0], torch.full((10,), -100))  # every label is left out: the mean is one over nothing
done = 0
while work:
    x, y = work.popleft()
    logits = net(x)
    kept = y != -100
    picked = logits.log_softmax(-1)[kept, y[kept]]
    loss = -picked.sum() / kept.sum()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    done += 1
    print(done, len(work), f"{loss.item():.6f}")
