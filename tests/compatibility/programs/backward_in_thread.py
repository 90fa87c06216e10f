"""Each backward pass runs in a worker thread of its own, the step in the main thread."""
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(14)
model = nn.Sequential(nn.Linear(6, 10), nn.ELU(), nn.Linear(10, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
pool = ThreadPoolExecutor(max_workers=1)
for step in range(8):
    x = torch.rand(5, 6)
    if step == 4:
        x[3] = 0
    total = x.sum(1)
    loss = (model(x).squeeze(1) - torch.log(total)).pow(2).mean()  # birth
    opt.zero_grad()
    pool.submit(loss.backward).result()
    opt.step()
    print(step, f"{loss.item():.6f}")
pool.shutdown()
