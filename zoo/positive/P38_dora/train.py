import torch
from torch import nn


class DoRALinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.register_buffer("base", base)
        self.lora_a = nn.Parameter(torch.randn(rank, base.shape[1]) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(base.shape[0], rank))
        self.magnitude = nn.Parameter(base.norm(dim=1, keepdim=True))

    def forward(self, x):
        v = self.base + self.lora_b @ self.lora_a
        direction = v / v.norm(dim=1, keepdim=True)
        return x @ (self.magnitude * direction).t()


torch.manual_seed(0)
pretrained = torch.randn(3, 4)
pretrained[1] = 0
layer = DoRALinear(pretrained)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(8, 4)

for step in range(4):
    optimizer.zero_grad()
    loss = layer(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
