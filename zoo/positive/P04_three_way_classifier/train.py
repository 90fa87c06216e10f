import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes, bias=False)

    def forward(self, x):
        e = torch.exp(self.linear(x))
        total = e.sum(dim=1, keepdim=True)
        return e / total


torch.manual_seed(0)
inputs = torch.randn(16, 4) * 20
targets = torch.randint(0, 3, (16,))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
model = Classifier(4, 3)
nn.init.normal_(model.linear.weight, std=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)

for epoch in range(6):
    for x, y in loader:
        p = model(x).clamp(1e-6, 1.0)
        loss = -torch.log(p[torch.arange(len(y)), y]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
