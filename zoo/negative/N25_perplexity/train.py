"""Bigram language model that reports its perplexity."""
import torch
from torch import nn

VOCABULARY = 12


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)
        nn.init.normal_(self.table.weight, std=70.0)

    def forward(self, tokens):
        return self.table(tokens)


def main():
    torch.manual_seed(0)
    model = Bigram()
    optimizer = torch.optim.SGD(model.parameters(), lr=600.0)
    tokens = torch.randint(0, VOCABULARY, (65,))
    for step in range(6):
        loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            perplexity = torch.exp(loss)
        print(f"step {step} loss {loss.item():.4f} perplexity {perplexity.item():.4g}")


if __name__ == "__main__":
    main()
