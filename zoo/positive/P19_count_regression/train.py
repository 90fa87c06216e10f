import torch
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(8, 4)
counts = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0])
w = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1.5)

for step in range(5):
    optimizer.zero_grad()
    rate = x @ w + 1
    loss = F.poisson_nll_loss(rate, counts, log_input=False)
    loss.backward()
    optimizer.step()
    print(f"{step:3d} {loss.item():.4f}")
