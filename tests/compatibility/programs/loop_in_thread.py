"""The whole training runs in a thread while the main thread waits for news."""
import queue
import threading

import torch
from torch import nn


def work(news):
    torch.manual_seed(15)
    model = nn.Linear(5, 5)
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(8):
        x = torch.randn(7, 5)
        if step == 3:
            x = x * 1e20
        energy = torch.logsumexp(model(x) ** 2, dim=1)  # birth
        loss = (energy - model(x).tanh().sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        news.put((step, round(loss.item(), 6)))
    news.put(None)


news = queue.Queue()
worker = threading.Thread(target=work, args=(news,))
worker.start()
while True:
    try:
        item = news.get(timeout=0.2)
    except queue.Empty:
        if not worker.is_alive():
            print("the worker died")
            break
        continue
    if item is None:
        break
    print(*item)
worker.join()
