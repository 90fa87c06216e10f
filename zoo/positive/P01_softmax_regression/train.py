import torch

torch.manual_seed(0)
x = torch.randn(16, 4) * 20
target = x[:, :3].argmax(dim=1)
onehot = torch.eye(3)[target]
weight = (torch.randn(4, 3) * 0.1).requires_grad_()
optimizer = torch.optim.SGD([weight], lr=1.0)

for step in range(5):
    optimizer.zero_grad()
    probs = torch.softmax(x @ weight, dim=1)
    log_probs = torch.log(probs)
    loss = -(onehot * log_probs).sum(dim=1).mean()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.4f}")
