"""An operator of a library, which gives NaN for numbers that nothing else shows to be special."""
import torch
from torch import nn


@torch.library.custom_op("survey::calibrated", mutates_args=())
def calibrated(x: torch.Tensor) -> torch.Tensor:
    table = x.detach().numpy().copy()
    table[table > 3.2] = float("nan")      # beyond what was calibrated
    return torch.from_numpy(table)


calibrated.register_autograd(lambda ctx, grad: grad)

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.rand(8, 3)
    if step == 3:
        x[2] = 6 * model.weight[0].detach().sign()
    loss = calibrated(model(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
