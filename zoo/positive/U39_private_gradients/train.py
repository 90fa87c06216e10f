"""Differentially private training: per-sample gradients are scaled to unit length and noised."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap


def sample_loss(parameters, model, x, y):
    score = functional_call(model, parameters, (x.unsqueeze(0),)).squeeze()
    return torch.relu(1 - y * score)


def private_step(model, x, y):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    grads = vmap(grad(sample_loss), in_dims=(None, None, 0, 0))(parameters, model, x, y)
    squares = torch.stack([g.flatten(1).square().sum(1) for g in grads.values()])
    length = squares.sum(0).sqrt()
    for name, p in model.named_parameters():
        g = grads[name]
        unit = g / length.view(-1, *[1] * (g.dim() - 1))
        p.grad = unit.mean(0) + 0.01 * torch.randn_like(p)


def main():
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(4):
        x, y = torch.randn(6, 5) * 0.3, torch.ones(6)
        if step == 2:
            x[5] = 200 * model.weight.detach().squeeze(0)
        private_step(model, x, y)
        optimizer.step()
        print(f"step {step} weight {model.weight.norm().item():.5f}")


main()
