import math

import torch
import torch.nn.functional as F
from torch import nn


class ArcMargin(nn.Module):
    def __init__(self, weight, s=30.0, m=0.5):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.s, self.m = s, m

    def forward(self, features, label):
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        sine = torch.sqrt(1 - cosine.pow(2))
        phi = cosine * math.cos(self.m) - sine * math.sin(self.m)
        onehot = F.one_hot(label, cosine.shape[1]).float()
        return self.s * (onehot * phi + (1 - onehot) * cosine)


def main():
    torch.manual_seed(0)
    weight = torch.eye(3)
    weight[1, 0] = 0.2
    head = ArcMargin(weight)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    features, label = torch.eye(3), torch.arange(3)
    for step in range(4):
        loss = F.cross_entropy(head(features, label), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
