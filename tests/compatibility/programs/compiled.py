"""torch.compile around the model and the step."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        z = self.outer(h)
        temperature = x.abs().mean(1, keepdim=True)
        return torch.log_softmax(z / temperature, dim=1)  # birth


torch.manual_seed(28)
net = Net()
model = torch.compile(net, backend="aot_eager")
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for i in range(8):
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    if i == 5:
        x[4] = 0
    loss = nn.functional.nll_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.5f}")
