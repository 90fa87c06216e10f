"""Per-sample gradients, clipped one by one (the core of DP-SGD), with torch.func."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(params, x, y):
    out = functional_call(model, params, (x,))
    return ((out - y) ** 2 / y.abs()).mean()  # birth


for step in range(8):
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    if step == 5:
        y[2] = 0
    params = {k: p.detach() for k, p in model.named_parameters()}
    each = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
    size = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    scale = (1.0 / size).clamp(max=1.0)
    for name, p in model.named_parameters():
        g = each[name]
        p.grad = (g * scale.view(-1, *[1] * (g.dim() - 1))).mean(0)
    opt.step()
    print(step, f"{loss_of(dict(model.named_parameters()), x, y.abs() + 0.1).item():.6f}")
