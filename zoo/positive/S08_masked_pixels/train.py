"""A small encoder on satellite tiles; clouds were marked when the archive was written."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def archive(tiles):
    images = torch.rand(tiles, 2, 6, 6)
    images[10, 1, 2:4, 3] = torch.nan
    return TensorDataset(images, torch.rand(tiles, 3))


torch.manual_seed(0)
loader = DataLoader(archive(24), batch_size=4)
model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.GELU(), nn.Flatten(), nn.Linear(80, 3))
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
for step, (tile, cover) in enumerate(loader):
    loss = nn.functional.mse_loss(model(tile), cover)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
