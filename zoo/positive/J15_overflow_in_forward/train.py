import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 1, bias=False))
nn.init.constant_(model[0].weight, 0.4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(6):
    x = torch.rand(4, 8) * (1.0 if step < 2 else 6e4)
    with torch.autocast("cpu", dtype=torch.float16):
        hidden = model[0](x)
        prediction = model[2](torch.relu(hidden) - hidden.abs())
    loss = prediction.float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.5g} scale {scaler.get_scale():g}")
