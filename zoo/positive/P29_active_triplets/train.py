import torch

torch.manual_seed(0)
x = torch.randn(6, 5)
w = (torch.randn(5, 4) * 0.1).requires_grad_()
opt = torch.optim.SGD([w], lr=0.3)


def sqdist(a, b):
    return (a - b).pow(2).sum(dim=1)


for step in range(5):
    anchor, positive, negative = x @ w, (x + 0.01) @ w, x.flip(0) @ w
    hinge = torch.relu(sqdist(anchor, positive) - sqdist(anchor, negative) + 1.0)
    active = (hinge > 0).sum()
    loss = hinge.sum() / active
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, "triplet loss", loss.item())
