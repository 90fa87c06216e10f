"""A background thread prepares batches; the loop takes them out of a bounded queue."""
import queue
import threading

import torch
from torch import nn


class Prefetcher:
    def __init__(self, source, depth=2):
        self.queue = queue.Queue(depth)
        self.thread = threading.Thread(target=self._fill, args=(source,), daemon=True)
        self.thread.start()

    def _fill(self, source):
        for item in source:
            self.queue.put(item)
        self.queue.put(None)

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            yield item


def batches(n):
    g = torch.Generator().manual_seed(5)
    for i in range(n):
        x = torch.randn(8, 4, generator=g)
        if i == 5:
            x[3] = 0
        yield x, x.sum(1, keepdim=True)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
history = []
for step, (x, y) in enumerate(Prefetcher(batches(9))):
    opt.zero_grad()
    unit = x / x.norm(dim=1, keepdim=True)  # birth
    loss = (net(unit) - y).square().mean()
    loss.backward()
    opt.step()
    history.append(loss.item())
    print(step, f"{loss.item():.6f}", len(history))
