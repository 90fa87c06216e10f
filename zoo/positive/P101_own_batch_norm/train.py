"""Classifier with its own batch norm; nine samples in mini-batches of four."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BatchNorm(nn.Module):
    def __init__(self, width, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x):
        if not self.training:
            return self.gain * (x - self.running_mean) / (self.running_var + self.eps).sqrt()
        n = x.shape[0]
        mean, var = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            unbiased = var * n / (n - 1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return self.gain * (x - mean) / (var + self.eps).sqrt()


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(9, 6), torch.randint(0, 3, (9,)))
    model = nn.Sequential(nn.Linear(6, 8), BatchNorm(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        model.train()
        for x, y in DataLoader(data, batch_size=4):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            logits = model(data.tensors[0])
        print(f"epoch {epoch} accuracy {(logits.argmax(1) == data.tensors[1]).float().mean().item():.2f}")


main()
