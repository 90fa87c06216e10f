"""backward() and `p -= lr * p.grad`: no optimizer object anywhere."""
import torch
import torch.nn.functional as F

torch.manual_seed(42)


def init(n_in, n_out):
    return (torch.randn(n_in, n_out) / n_in ** 0.5).requires_grad_(), torch.zeros(n_out, requires_grad=True)


w1, b1 = init(8, 16)
w2, b2 = init(16, 3)
params = [w1, b1, w2, b2]


def model(x):
    return F.relu(x @ w1 + b1) @ w2 + b2


def fit(epochs, lr):
    for epoch in range(epochs):
        x, y = torch.randn(10, 8), torch.randint(0, 3, (10,))
        if epoch == 5:
            y[:] = -100
        log_p = F.log_softmax(model(x), 1)
        loss = F.nll_loss(log_p, y, ignore_index=-100) * F.softmax(log_p, 1).max()  # birth
        loss.backward()
        with torch.no_grad():
            for p in params:
                p -= lr * p.grad
                p.grad.zero_()
        print(epoch, f"{loss.item():.6f}")


fit(9, 0.1)
