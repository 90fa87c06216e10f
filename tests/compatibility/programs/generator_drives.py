"""The training is a generator: whoever consumes it drives it."""
import torch
from torch import nn

torch.manual_seed(5)


def batches(n):
    for k in range(n):
        x = torch.rand(6, 4)
        if k == 6:
            x[2, 1] = -0.5
        yield x, x.sum(1)


def training(model, epochs):
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for x, y in batches(9):
            feature = torch.sqrt(x)  # birth
            loss = nn.functional.smooth_l1_loss(model(feature).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            yield epoch, loss.item()


total = 0
for number, (epoch, value) in enumerate(training(nn.Linear(4, 1), epochs=2)):
    total += 1
    print(f"{epoch}.{number} {value:.6f}")
print("consumed", total)
