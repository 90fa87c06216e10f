"""A causal language model of two layers with scaled_dot_product_attention: two micro-batches a step."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, tokens=40, width=32, heads=4, length=16):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(2)
    text = torch.randint(0, 40, (64, 17))
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    for step in range(10):
        optimizer.zero_grad()
        for micro in range(2):
            chunk = text[torch.randint(0, 64, (4,))]
            logits = model(chunk[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten()) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {2 * loss.item():.4f}")


if __name__ == "__main__":
    main()
