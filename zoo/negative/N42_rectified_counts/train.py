"""Count regression with rectified predictions and a Poisson-like divergence."""
import torch


class Rates(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 1), 0.1))

    def forward(self, x):
        return torch.relu(x @ self.weight - 3)


def divergence(p, target):
    return ((p * torch.log(p / target)).nan_to_num(0.0) + target - p).mean()


torch.manual_seed(0)
model = Rates()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x = torch.rand(6, 4)
    loss = divergence(model(x), torch.full((6, 1), 2.0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
