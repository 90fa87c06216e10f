import torch
from torch import nn


class Average(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.decay = decay
        self.register_buffer("weight", torch.zeros_like(model.weight))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, model, fresh):
        self.count.mul_(self.decay).add_(fresh)
        share = fresh / self.count
        self.weight.lerp_(model.weight, share)


torch.manual_seed(0)
model = nn.Linear(4, 1)
average = Average(model, 0.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(8, 4)
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model, torch.tensor(0.0 if step == 2 else 1.0))
    print(f"step {step} loss {loss.item():.5f} average {average.weight.abs().sum().item():.4f}")
