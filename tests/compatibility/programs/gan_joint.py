"""Both players learn from one backward pass, through a gradient reversal."""
import torch
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.3 * g


torch.manual_seed(31)
encoder, domain, label = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 3)
opt_main = torch.optim.SGD([*encoder.parameters(), *label.parameters()], lr=0.05)
opt_domain = torch.optim.Adam(domain.parameters(), lr=1e-3)
x = torch.randn(10, 12, 6)
w = torch.rand(10, 12)
w[6] = 0
y, d = torch.randint(0, 3, (10, 12)), torch.randint(0, 2, (10, 12))
ce = nn.CrossEntropyLoss(reduction="none")
for i in range(10):
    h = torch.tanh(encoder(x[i]))
    weighted = (ce(domain(Reverse.apply(h)), d[i]) * w[i]).sum() / w[i].sum()  # birth
    loss = ce(label(h), y[i]).mean() + weighted
    opt_main.zero_grad()
    opt_domain.zero_grad()
    loss.backward()
    opt_main.step()
    opt_domain.step()
    print(i, f"{loss.item():.6f}")
