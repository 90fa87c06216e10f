import torch
from torch import nn

torch.manual_seed(0)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        nn.init.ones_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return torch.sigmoid(self.linear(x))


D = Discriminator()
d_optimizer = torch.optim.SGD(D.parameters(), lr=0.1)
offsets = [4.0, 4.0, 4.0, -60.0, -60.0, -60.0]

for i, offset in enumerate(offsets):
    real = torch.randn(8, 2) + offset
    fake = torch.randn(8, 2) - 4
    d_real = D(real)
    d_fake = D(fake)
    real_term = torch.log(d_real)
    fake_term = torch.log(1 - d_fake + 1e-8)
    d_loss = -(real_term + fake_term).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    print(f"[{i}] d_loss={d_loss.item():.4f}")
