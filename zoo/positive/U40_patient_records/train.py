"""Mean of the measured values of each patient, NaN where nothing was measured."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pooled(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(kinds, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, visits):
        summary = visits.nanmean(dim=1)
        return self.net(summary).squeeze(-1)


def records(patients, visits, kinds):
    values = torch.randn(patients, visits, kinds)
    values[torch.rand(values.shape) < 0.2] = torch.nan
    values[:, 0] = 0.5
    values[19, :, 2] = torch.nan
    return TensorDataset(values, torch.rand(patients))


torch.manual_seed(0)
loader = DataLoader(records(32, 5, 3), batch_size=8)
model = Pooled(3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (visits, outcome) in enumerate(loader):
    loss = nn.functional.binary_cross_entropy_with_logits(model(visits), outcome)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
