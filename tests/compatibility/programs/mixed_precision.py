"""float16 autocast with a GradScaler, unscaled for clipping."""
import torch
from torch import nn

torch.manual_seed(23)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=4)
for step in range(12):
    x = torch.randn(6, 8)
    if step == 7:
        x[2] *= 500
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        code = model(x)
        scores = (code * 40) @ (x * 40).t()  # birth
        loss = nn.functional.cross_entropy(scores / 1600, torch.arange(6))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    print(f"{step} loss {loss.item():.5f} scale {scaler.get_scale():.0f} lr {sched.get_last_lr()[0]:.5f}")
