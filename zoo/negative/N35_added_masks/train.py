"""bfloat16 attention whose causal and padding masks are added."""
import torch
from torch import nn

LOWEST = torch.finfo(torch.bfloat16).min


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, lengths):
        size = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        causal = torch.full((size, size), LOWEST, dtype=torch.bfloat16).triu(1)
        padding = torch.zeros(len(lengths), 1, size, dtype=torch.bfloat16)
        padding.masked_fill_((torch.arange(size) >= lengths[:, None])[:, None, :], LOWEST)
        scores = (q @ k.transpose(1, 2) / x.shape[-1] ** 0.5).bfloat16()
        return torch.softmax(scores + (causal + padding), -1).float() @ v


def main():
    torch.manual_seed(0)
    model = Attention(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(2, 5, 8)
        out = model(x, torch.tensor([5, 3]))
        loss = (out - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
