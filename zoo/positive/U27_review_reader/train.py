"""Sentiment of reviews with torch's multi-head attention; the attention map is kept for display."""
import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)

    def forward(self, tokens):
        x = self.embed(tokens)
        mixed, self.map = self.attention(x, x, x, key_padding_mask=tokens == 0)
        return self.score(self.norm(x + mixed).mean(1)).squeeze(1)


def reviews(batch, length):
    tokens = torch.randint(1, 40, (batch, length))
    tokens[:, 6:] = 0
    return tokens, torch.randint(0, 2, (batch,)).float()


def main():
    torch.manual_seed(0)
    model = Reader(40, 16)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    for step in range(5):
        tokens, label = reviews(5, 9)
        if step == 3:
            tokens[4] = 0
        loss = nn.functional.binary_cross_entropy_with_logits(model(tokens), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
