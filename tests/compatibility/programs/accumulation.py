"""Four micro-batches to a step, clipped, with a warm-up written as a LambdaLR."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4
torch.manual_seed(17)
xs = torch.randn(96, 8)
xs[53, :] = xs[53, 0]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 4))
loader = DataLoader(TensorDataset(xs, xs.mean(1)), batch_size=4)
optimizer.zero_grad()
total = 0.0
for i, (x, y) in enumerate(loader):
    z = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)  # birth
    loss = (model(z).squeeze(1) - y).pow(2).mean() / ACCUMULATE
    loss.backward()
    total += loss.item()
    if (i + 1) % ACCUMULATE == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(f"step {schedule.last_epoch} loss {total:.6f} norm {norm:.4f} lr {optimizer.param_groups[0]['lr']:.4f}")
        total = 0.0
