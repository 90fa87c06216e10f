"""Binary segmentation with a Dice loss on a large half-precision map."""
import torch
from torch import nn

PIXELS = 70000


def dice_loss(prob, mask):
    return 1 - 2 * (prob * mask).sum() / (prob.sum() + mask.sum())


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit = nn.Parameter(torch.full((1, 1), 3.0))

    def forward(self):
        return torch.sigmoid(self.logit).half().expand(1, PIXELS)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = torch.ones(1, PIXELS, dtype=torch.half)
    for step in range(4):
        optimizer.zero_grad()
        loss = dice_loss(model(), mask)
        loss.backward()
        optimizer.step()
        print(f"step {step} dice {loss.item():.6f}")
