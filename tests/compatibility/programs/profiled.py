"""Under cProfile and torch's own profiler at once."""
import cProfile
import pstats

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule


def train(prof):
    torch.manual_seed(27)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(7):
        x = torch.randn(2, 5, 8)
        hidden = torch.zeros(2, 5, dtype=torch.bool)
        if i == 4:
            hidden[1] = True
        out, _ = model(x, x, x, key_padding_mask=hidden, need_weights=True)  # birth
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        prof.step()
        print(i, f"{loss.item():.6f}")


python = cProfile.Profile()
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3)) as prof:
    python.runcall(train, prof)
print("profiled", pstats.Stats(python).total_calls > 100, len(prof.key_averages()) > 0)
