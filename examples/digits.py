"""Trains a small classifier on scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels.

An ordinary script with an ordinary bug (pip install scikit-learn). To see it found: finitude run examples/digits.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Head(nn.Module):
    """Log-probabilities of the ten digits."""

    def __init__(self, width, classes):
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, features):
        logits = self.linear(features)
        p = torch.softmax(logits, dim=-1)
        logp = torch.log(p)
        return logp


class Classifier(nn.Module):
    def __init__(self, width=256, classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = Head(width, classes)

    def forward(self, images):
        return self.head(self.body(images))


def cross_entropy(logp, labels):
    wanted = nn.functional.one_hot(labels, logp.shape[-1])
    return -(wanted * logp).sum(dim=-1).mean()


@torch.no_grad()
def accuracy(model, images, labels):
    return (model(images).argmax(dim=-1) == labels).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # fastest for a model this small
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images))
    train, test = order[:1500], order[1500:]

    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(train)} training images")
    step = 0
    for epoch in range(15):
        for batch in train[torch.randperm(len(train))].split(50):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step:4d}  loss {loss.item():.4f}")
            step += 1
        print(f"epoch {epoch}  test accuracy {accuracy(model, images[test], labels[test]):.3f}")


if __name__ == "__main__":
    main()
