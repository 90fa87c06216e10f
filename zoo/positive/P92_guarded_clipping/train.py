"""SGD with global-norm clipping inside the optimizer and a guard for overflowing norms."""
import torch


class ClippedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, max_norm=1.0):
        super().__init__(params, dict(lr=lr, max_norm=max_norm))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            flat = torch.cat([p.grad.flatten() for p in group["params"]])
            norm = flat.norm()
            overflow = torch.isinf(norm)
            norm = overflow.logical_not() * norm + overflow * -1.0
            scale = group["max_norm"] / norm.clamp(min=group["max_norm"])
            for p in group["params"]:
                p.sub_(group["lr"] * scale * p.grad)


torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = ClippedSGD(model.parameters())
for step in range(5):
    x = torch.randn(8, 4)
    weight = 1.0 if step < 1 else 1e30
    loss = weight * model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6e}")
