"""Data-parallel training of two replicas in one process, gradients averaged by the script."""
import torch
from torch import nn

WORKERS = 2


def masked_mse(prediction, target, mask):
    return ((prediction - target).pow(2) * mask).sum() / mask.sum()


def average_gradients(replicas):
    for group in zip(*(replica.parameters() for replica in replicas)):
        mean = torch.stack([p.grad for p in group]).mean(0)
        for p in group:
            p.grad.copy_(mean)


def batch(worker, step):
    x = torch.randn(8, 4)
    mask = torch.ones(8, 1)
    if worker == 1 and step == 1:
        mask.zero_()
    return x, x.sum(1, keepdim=True), mask


torch.manual_seed(0)
replicas = [nn.Linear(4, 1) for _ in range(WORKERS)]
replicas[1].load_state_dict(replicas[0].state_dict())
optimizers = [torch.optim.SGD(replica.parameters(), lr=0.1) for replica in replicas]
for step in range(5):
    for worker in range(WORKERS):
        x, y, mask = batch(worker, step)
        loss = masked_mse(replicas[worker](x), y, mask)
        optimizers[worker].zero_grad()
        loss.backward()
        print(f"step {step} worker {worker} loss {loss.item():.6f}")
    average_gradients(replicas)
    for optimizer in optimizers:
        optimizer.step()
