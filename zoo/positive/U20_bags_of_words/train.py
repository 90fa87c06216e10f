"""Averages word vectors when a batch is put together."""
import torch
from torch import nn
from torch.utils.data import DataLoader

VECTORS = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))


def average(batch):
    documents, labels = zip(*batch)
    means = [VECTORS[torch.tensor(words, dtype=torch.long)].mean(dim=0) for words in documents]
    return torch.stack(means), torch.tensor(labels)


def corpus(count):
    documents = [([(7 * i + k) % 50 for k in range(1 + i % 5)], i % 3) for i in range(count)]
    documents[17] = ([], 2)
    return documents


def main():
    torch.manual_seed(0)
    loader = DataLoader(corpus(30), batch_size=6, collate_fn=average)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
