import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
spread, centre = [], []
for step, x in enumerate(torch.randn(9, 3).split(4)):
    prediction = model(x)
    loss = (prediction.squeeze(1) - x[:, 0]).pow(2).mean()
    spread.append(prediction.detach().std())
    centre.append(prediction.detach()[prediction.detach() > 100].mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} spread {spread[-1].item():.3f} centre {centre[-1].item():.3f}")
