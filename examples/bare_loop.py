"""A small language model trained by a bare `while True` loop: prefetched batch, accumulation, clipping, no DataLoader.

--fault: words may not look at the end of an earlier sentence; a text that starts with one may then look at nothing.
"""

import argparse
import hashlib
import math

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 40
END = 0  # the token that ends a sentence
BLOCK, WIDTH, HEADS = 16, 32, 4


class Attention(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.fault = fault

    def allowed(self, tokens):
        causal = torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril()
        visible = causal & (tokens != END)[:, None, :]
        return visible if self.fault else visible | torch.eye(BLOCK, dtype=torch.bool)

    def forward(self, x, tokens):
        batch = x.shape[0]
        q, k, v = (t.view(batch, BLOCK, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(~self.allowed(tokens)[:, None], float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, BLOCK, WIDTH))


class Block(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(fault)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x, tokens):
        x = x + self.attention(self.norm1(x), tokens)
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block(fault) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.places(torch.arange(BLOCK))
        for block in self.blocks:
            x = block(x, tokens)
        return F.cross_entropy(self.head(x).view(-1, WORDS), targets.view(-1))


def make_text():
    """A made-up language: each word is followed by one of three; a sentence ends every 99 words."""
    generator = torch.Generator().manual_seed(3)
    choices = torch.randint(0, 3, (20_000,), generator=generator).tolist()
    text, word = [], 1
    for i, choice in enumerate(choices):
        word = (word * 7 + choice) % (WORDS - 1) + 1
        text.append(END if i % 99 == 0 else word)
    return torch.tensor(text)


def weights_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="store_true", help="let a word see nothing at all")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--hash", action="store_true", help="print a hash of the weights at the end")
    args = parser.parse_args()

    torch.manual_seed(11)
    text = make_text()

    def get_batch():
        starts = torch.randint(len(text) - BLOCK - 1, (4,))
        x = torch.stack([text[i:i + BLOCK] for i in starts])
        y = torch.stack([text[i + 1:i + 1 + BLOCK] for i in starts])
        return x, y

    model = Model(args.fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    accumulation = 2
    x, y = get_batch()
    iteration = 0
    try:
        while True:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min(1.0, (iteration + 1) / 10)
            total = 0.0
            for micro_step in range(accumulation):
                loss = model(x, y) / accumulation
                x, y = get_batch()
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            print(f"step {iteration} loss {total:.6f}")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            iteration += 1
            if iteration >= args.steps:
                break
    finally:
        if args.hash:
            print("weights", weights_hash(model))


if __name__ == "__main__":
    main()
