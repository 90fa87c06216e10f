"""Survival analysis with the Cox partial likelihood, in mini-batches."""
import torch
from torch import nn


class CoxLoss(nn.Module):
    def forward(self, risk, time, event):
        order = time.argsort(descending=True)
        risk, event = risk[order], event[order]
        log_sum = torch.logcumsumexp(risk, dim=0)
        return -((risk - log_sum) * event).sum() / event.sum()


def patients(count):
    x = torch.randn(count, 5)
    time = torch.rand(count)
    event = (torch.arange(count) % 3 == 0).float()
    event[16:24] = 0
    return torch.utils.data.TensorDataset(x, time, event)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 12), nn.SELU(), nn.Linear(12, 1))
criterion = CoxLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for step, (x, time, event) in enumerate(torch.utils.data.DataLoader(patients(40), 8)):
    loss = criterion(net(x).squeeze(1), time, event)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
