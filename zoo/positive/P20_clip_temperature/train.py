import torch
import torch.nn.functional as F
from torch import nn


class Contrastive(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.projection = nn.Parameter(torch.eye(dim))
        self.logit_scale = nn.Parameter(torch.zeros(()))

    def forward(self, image, text):
        scale = self.logit_scale.exp()
        return scale * (image @ self.projection) @ text.t()


torch.manual_seed(0)
features = F.normalize(torch.randn(8, 4), dim=1)
model = Contrastive(4)
optimizer = torch.optim.SGD(model.parameters(), lr=200.0)
labels = torch.arange(8)

for step in range(4):
    logits = model(features, features)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}, logit scale {model.logit_scale.item():.3f}")
