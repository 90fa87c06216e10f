"""Language model on random bytes, the way small GPT scripts are written."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

block_size, batch_size, vocab, n_embd = 8, 4, 32, 16
max_iters, eval_interval, warmup = 14, 5, 3
torch.manual_seed(1337)
np.random.seed(1337)
corpus = np.random.randint(0, vocab, 4000, dtype=np.uint16)


def get_batch(it):
    ix = torch.randint(len(corpus) - block_size - 1, (batch_size,))
    x = torch.stack([torch.from_numpy(corpus[i:i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(corpus[i + 1:i + 1 + block_size].astype(np.int64)) for i in ix])
    lengths = torch.full((batch_size,), block_size)
    if it == 9:
        lengths[2] = 0
    return x, y, lengths


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.ln, self.drop = nn.LayerNorm(n_embd), nn.Dropout(0.1)
        self.head = nn.Linear(n_embd, vocab, bias=False)

    def attend(self, x, lengths):
        q, k, v = self.qkv(x).split(n_embd, dim=2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(n_embd)
        keep = torch.arange(block_size) < lengths[:, None]
        att = att.masked_fill(~keep[:, None, :], float("-inf"))
        att = F.softmax(att, dim=-1)  # birth
        return self.proj(self.drop(att) @ v)

    def forward(self, idx, lengths, targets):
        x = self.tok(idx) + self.pos(torch.arange(block_size))
        x = x + self.attend(self.ln(x), lengths)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, vocab), targets.view(-1))


model = Gpt()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)

iter_num = 0
X, Y, L = get_batch(0)
while True:
    lr = 1e-3 * min(1.0, (iter_num + 1) / warmup)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        model.eval()
        with torch.no_grad():
            print(f"eval at {iter_num}: {model(X, torch.full_like(L, block_size), Y)[1].item():.4f}")
        model.train()
    logits, loss = model(X, L, Y)
    X, Y, L = get_batch(iter_num + 1)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item():.4f}, lr {lr:.2e}")
    iter_num += 1
    if iter_num > max_iters:
        break
