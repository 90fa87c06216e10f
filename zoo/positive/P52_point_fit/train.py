import torch

torch.manual_seed(0)
point = torch.tensor([1.0, 4.0], requires_grad=True)
target = torch.tensor([1.0, 2.0])
optimizer = torch.optim.SGD([point], lr=0.5)

for step in range(7):
    optimizer.zero_grad()
    squared = (point - target).pow(2).sum()
    loss = squared.sqrt()
    loss.backward()
    optimizer.step()
    print(f"step {step}: distance {loss.item():.3f}")
