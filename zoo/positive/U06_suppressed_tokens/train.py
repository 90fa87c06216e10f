"""Distils a small language model; special tokens are suppressed in both models."""
import torch
import torch.nn.functional as F
from torch import nn

SUPPRESSED = [1, 17]


class Head(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, vocabulary)

    def forward(self, hidden):
        scores = self.out(self.body(hidden))
        scores[..., SUPPRESSED] = -float("inf")
        return F.log_softmax(scores, dim=-1)


def main():
    torch.manual_seed(0)
    teacher, student = Head(16, 24), Head(16, 24)
    teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for step in range(4):
        hidden = torch.randn(5, 16)
        loss = F.kl_div(student(hidden), teacher(hidden), reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} kl {loss.item():.6f}")


main()
