"""Curve fitting with LBFGS; the last points are added one after the other."""
import torch

torch.manual_seed(2)
t = torch.linspace(0.1, 4, 30)
signal = 2.0 * torch.exp(-0.7 * t) + 0.01 * torch.randn(30)
t = torch.cat([t, torch.tensor([0.0])])
signal = torch.cat([signal, torch.tensor([2.0])])
theta = torch.tensor([1.0, 0.3, 0.1], requires_grad=True)
optimizer = torch.optim.LBFGS([theta], lr=0.5, max_iter=6)

for used in range(27, 32):
    evaluations = 0

    def closure():
        global evaluations
        evaluations += 1
        optimizer.zero_grad()
        model = theta[0] * torch.exp(-theta[1] * t[:used]) + theta[2] * torch.log(t[:used])  # birth
        loss = (model - signal[:used]).pow(2).mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print(used, evaluations, f"{loss.item():.6f}")
