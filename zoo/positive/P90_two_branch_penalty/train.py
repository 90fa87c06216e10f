"""Two-branch model; the gradient norm is clipped before every step."""
import torch
from torch import nn

torch.manual_seed(0)


class TwoBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 4, bias=False)
        self.b = nn.Linear(6, 4, bias=False)

    def forward(self, x, gate):
        fit = self.b(x).pow(2).mean()
        penalty = (self.a(x) * gate).pow(2).sum(1).sqrt().mean()
        return fit + 1e-3 * penalty


model = TwoBranch()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 6)
    loss = model(x, gate=1.0 if step < 2 else 0.0)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f} grad norm {norm.item():.4f}")
