"""Gradient descent from first principles: autograd.grad and an update under no_grad."""
import torch

torch.manual_seed(0)
x = torch.randn(9, 32, 3)
truth = torch.tensor([[1.0], [-2.0], [0.5]])
y = torch.sigmoid(x @ truth)
x[6] *= 300
w = torch.zeros(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
w.data.normal_()

for epoch in range(9):
    p = 1 / (1 + torch.exp(-(x[epoch] @ w + b)))
    loss = -(y[epoch] * torch.log(p) + (1 - y[epoch]) * torch.log(1 - p)).mean()  # birth
    gw, gb = torch.autograd.grad(loss, [w, b])
    with torch.no_grad():
        w -= 0.5 * gw
        b -= 0.5 * gb
    print(f"epoch {epoch} loss {loss.item():.6f}")
print(w.flatten().tolist(), b.item())
