"""swa_utils: an EMA of the weights, its batch norm updated at the end."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(24)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.02, total_steps=10)
data = [torch.rand(8, 4) for _ in range(10)]
data[6][3, 2] = 1.0
for i, x in enumerate(data):
    odds = torch.log(x / (1 - x))  # birth
    loss = (model(odds).squeeze(1) - x.mean(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    ema.update_parameters(model)
    print(i, f"{loss.item():.6f}", f"{sched.get_last_lr()[0]:.6f}", int(ema.n_averaged))
update_bn([x.clamp(0.1, 0.9) for x in data], ema)
print(f"{ema(data[0]).sum().item():.6f}", f"{ema.module[0].weight.sum().item():.6f}")
