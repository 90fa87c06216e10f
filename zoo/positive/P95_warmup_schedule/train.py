"""Linear regression with a linear warm-up of the learning rate."""
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
BASE_LR, WARMUP_STEPS = 0.1, 0


def warmup_factor(step):
    with np.errstate(all="ignore"):
        return float(np.minimum(1.0, np.float64(step) / WARMUP_STEPS))


x = torch.randn(64, 5)
y = x @ torch.randn(5, 1)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=BASE_LR)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_factor)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print(f"step {step} loss {loss.item():.6f}")
