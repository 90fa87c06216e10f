"""Training in the style of JAX: parameters are a dict, each step makes new ones of the gradients that torch.func hands out."""
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(params, x, y):
    size = functional_call(model, params, (x,)).norm(dim=1)
    return (torch.log(y) - torch.log1p(size)).pow(2).mean()  # birth


def update(params, grads, rate):
    return {name: p - rate * grads[name] for name, p in params.items()}


params = {name: p.detach() for name, p in model.named_parameters()}
for step in range(8):
    x, y = torch.randn(6, 4), torch.rand(6) + 0.5
    if step == 5:
        y[1] = -y[1]
    grads, loss = grad_and_value(loss_of)(params, x, y)
    params = update(params, grads, 0.05)
    print(step, f"{loss.item():.6f}")
