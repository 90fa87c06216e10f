"""Half-precision linear model with a small Adam of its own."""
import torch


class PlainAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                update = state["m"] / (state["v"].sqrt() + group["eps"])
                p.add_(update, alpha=-group["lr"])


torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(4, 3).half())
optimizer = PlainAdam([weight])
for step in range(5):
    features = torch.randn(16, 4)
    features[:, 2] = 0
    target = features[:, :3].half()
    loss = (features.half() @ weight - target).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
