import torch
from torch import nn


class Average(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.decay, self.ready = decay, False
        for name, p in model.named_parameters():
            self.register_buffer(name.replace(".", "_"), torch.empty_like(p).fill_(float("nan")))

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            mine = getattr(self, name.replace(".", "_"))
            mine.lerp_(p, 1 - self.decay) if self.ready else mine.copy_(p)
        self.ready = True


torch.manual_seed(0)
model = nn.Linear(4, 1)
average = Average(model, 0.9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    print(f"step {step} loss {loss.item():.5f} average {average.weight.abs().sum().item():.4f}")
