import torch

torch.manual_seed(0)
weight = torch.tensor([[1.0, 0.2], [0.1, 0.5]], requires_grad=True)
audio = torch.randn(32, 2) * 3
optimizer = torch.optim.SGD([weight], lr=0.2)

for step in range(5):
    z = audio @ weight.t()
    log_det = torch.logdet(weight)
    loss = 0.5 * z.pow(2).sum(dim=1).mean() - log_det
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step %d  nll %.4f" % (step, loss.item()))
