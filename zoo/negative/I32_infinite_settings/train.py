import torch
from torch import nn

torch.manual_seed(0)
bound = nn.Hardtanh(-float("inf"), float("inf"))
model = nn.Sequential(nn.Linear(4, 8), bound, nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
for step in range(4):
    x = torch.randn(8, 4)
    loss = model(x).clamp(min=-1.0, max=float("inf")).sub(x[:, :1]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
    optimizer.step()
    schedule.step(loss.item())
    print(f"step {step} loss {loss.item():.5f}")
