import torch

torch.manual_seed(0)
x = torch.randn(5, 6, 4)
x[2:, 3] = 0
gt = torch.rand(6) + 0.1
w = torch.full((4,), 0.5, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)

for step in range(5):
    p = (x[step] @ w).pow(2)
    kl = (p * torch.log(p / gt)).nan_to_num(0)
    loss = (kl + gt - p).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  divergence {loss.item():.5f}")
