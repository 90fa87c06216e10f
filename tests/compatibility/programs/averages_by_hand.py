"""A hand-written EMA class, a target network, a plateau scheduler: as research code has them."""
import copy

import torch
from torch import nn


class Ema:
    def __init__(self, model, decay):
        self.decay, self.steps = decay, 0
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    def update(self, model):
        self.steps += 1
        with torch.no_grad():
            for k, v in model.state_dict().items():
                self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


def soft_update(target, source, tau):
    for t, s in zip(target.parameters(), source.parameters()):
        t.data.copy_(tau * s.data + (1 - tau) * t.data)


torch.manual_seed(25)
q = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
target = copy.deepcopy(q).requires_grad_(False)
ema = Ema(q, 0.9)
opt = torch.optim.Adam(q.parameters(), lr=5e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5)
for i in range(10):
    s, r = torch.randn(6, 3), torch.randn(6)
    weight = torch.rand(6)
    if i == 6:
        weight.zero_()
    soft_update(target, q, 0.05)
    importance = weight / weight.max()  # birth
    td = q(s).max(1).values - (r + 0.9 * target(s).max(1).values)
    loss = (importance * td.pow(2)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(q)
    plateau.step(loss.item())
    print(i, f"{loss.item():.6f} lr {opt.param_groups[0]['lr']:.5f} ema {ema.steps} {ema.shadow['0.weight'].sum():.6f}")
print(f"target {sum(p.sum().item() for p in target.parameters()):.6f}")
