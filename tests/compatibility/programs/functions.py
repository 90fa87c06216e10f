"""Sentiment toy in the style of the tutorials: train(), evaluate(), main()."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def build(args):
    return nn.Sequential(nn.EmbeddingBag(50, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, args.classes))


def make_data(n, args):
    words = torch.randint(0, 50, (n, 7))
    spread = torch.rand(n, 1) + 0.5
    spread[41] = 0
    return TensorDataset(words, spread, torch.randint(0, args.classes, (n,)))


def train(model, loader, criterion, optimizer, epoch):
    model.train()
    running, seen = 0.0, 0
    for i, (words, spread, target) in enumerate(tqdm(loader, desc=f"epoch {epoch}", leave=False)):
        optimizer.zero_grad()
        logits = model(words) / spread  # birth
        loss = criterion(logits, target)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(words)
        seen += len(words)
        if i % 2 == 0:
            print(f"epoch {epoch} batch {i} loss {running / seen:.4f}")
    return running / seen


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    return sum(criterion(model(w) / s.clamp(min=0.1), t).item() for w, s, t in loader) / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = make_data(64, args)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, criterion = build(args), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = []
    for epoch in range(args.epochs):
        history.append((train(model, loader, criterion, optimizer, epoch), evaluate(model, loader, criterion)))
        print("history", [[round(v, 5) for v in pair] for pair in history])


if __name__ == "__main__":
    main()
