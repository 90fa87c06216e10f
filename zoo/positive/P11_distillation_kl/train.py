import torch

torch.manual_seed(0)
p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
x = torch.randn(2, 4)
w = torch.randn(4, 3, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)

for step in range(4):
    opt.zero_grad()
    q = torch.softmax(x @ w, dim=1)
    ratio = torch.log(p / q)
    loss = (p * ratio).sum(dim=1).mean()
    loss.backward()
    opt.step()
    print("kl", step, loss.item())
