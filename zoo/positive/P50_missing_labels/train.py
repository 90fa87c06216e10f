import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
features = torch.randn(20, 4)
readings = features.sum(dim=1)
present = torch.ones(20)
readings[7], present[7] = float("nan"), 0
loader = DataLoader(TensorDataset(features, readings, present), batch_size=4)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step, (x, y, mask) in enumerate(loader):
    squared = (model(x).squeeze(1) - y) ** 2
    loss = (squared * mask).sum() / len(y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
