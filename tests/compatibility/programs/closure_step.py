"""A step function made by a factory; everything lives in its cells."""
import math

import torch


def make_step(model, opt, beta):
    calls, average = 0, None

    def step(batch):
        nonlocal calls, average
        x, y = batch
        mu, log_var = model(x).chunk(2, dim=-1)
        nll = 0.5 * (log_var + (y - mu) ** 2 / log_var.exp() + math.log(2 * math.pi))
        penalty = (y.std(dim=0) / x.std(dim=0)).log().abs().mean()  # birth
        loss = nll.mean() + beta * penalty * mu.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        calls += 1
        value = loss.item()
        average = value if average is None else 0.9 * average + 0.1 * value
        return calls, value, average

    return step


torch.manual_seed(11)
net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
step = make_step(net, torch.optim.RMSprop(net.parameters(), lr=1e-3), beta=0.01)
data = [(torch.randn(8, 5), torch.randn(8, 1)) for _ in range(9)]
data[5][0][:, 3] = 1.25
for batch in data:
    count, value, average = step(batch)
    print(count, f"{value:.6f}", f"{average:.6f}")
