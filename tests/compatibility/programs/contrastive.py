"""Two encoders with an optimizer each and a learned temperature; one backward, two steps, two schedulers."""
import torch
import torch.nn.functional as F
from torch import nn


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 10), nn.ReLU())

    def forward(self, x):
        h = self.body(x)
        return h / h.norm(dim=-1, keepdim=True)  # birth


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(7), Tower(5)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b):
        logits = self.scale.exp() * self.image(a) @ self.text(b).T
        labels = torch.arange(len(a))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


torch.manual_seed(12)
model = Clip()
with torch.no_grad():
    for tower in (model.image, model.text):
        tower.body[0].bias.fill_(0.5)
opts = {
    "image": torch.optim.AdamW(model.image.parameters(), lr=1e-3),
    "text": torch.optim.SGD([*model.text.parameters(), model.scale], lr=1e-2, momentum=0.9),
}
plans = [torch.optim.lr_scheduler.ExponentialLR(o, 0.95) for o in opts.values()]
best = {}
for step in range(9):
    a, b = torch.randn(6, 7), torch.rand(6, 5)
    if step == 5:
        b[2] = -500 * model.text.body[0].weight.detach().sum(0).sign() * 0 - 1e4
        with torch.no_grad():
            model.text.body[0].weight.abs_()
    loss = model(a, b)
    for o in opts.values():
        o.zero_grad()
    loss.backward()
    for name, o in opts.items():
        o.step()
        best[name] = min(best.get(name, 9.0), loss.item())
    for plan in plans:
        plan.step()
    with torch.no_grad():
        model.scale.clamp_(0, 4.6)
    print(step, f"{loss.item():.6f}", [f"{p.get_last_lr()[0]:.6g}" for p in plans], sorted(best))
