"""Steps are counted, not epochs: the loader is started again whenever it runs dry."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
x = torch.rand(30, 5) + 0.1
x[17] = 0.0
loader = DataLoader(TensorDataset(x, torch.rand(30)), batch_size=6, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(5, 10), nn.SiLU(), nn.Linear(10, 5))
optim = torch.optim.Adamax(model.parameters(), lr=2e-3)
stream = iter(loader)
for i in range(14):
    try:
        rows, target = next(stream)
    except StopIteration:
        stream = iter(loader)
        rows, target = next(stream)
    if i < 5:
        rows = rows + 0.05
    share = rows / rows.sum(1, keepdim=True)  # birth
    kl = (share * (torch.log_softmax(model(share), 1) - target[:, None])).sum(1)
    loss = -kl.mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(i, round(loss.item(), 6))
