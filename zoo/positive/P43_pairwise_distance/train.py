import torch

torch.manual_seed(0)
x = torch.randn(32, 64) * 10
weight = torch.randn(64, 16, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

for step in range(4):
    embedding = x @ weight
    norms = embedding.pow(2).sum(dim=1)
    squared = norms[:, None] + norms[None, :] - 2 * embedding @ embedding.t()
    distance = squared.sqrt()
    loss = distance.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("mean distance", step, loss.item())
