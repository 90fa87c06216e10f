"""Instance normalisation with the epsilon switched off, on tiles that may be uniform."""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm2d(2, eps=0.0, affine=True)
        self.conv = nn.Conv2d(2, 4, 3)
        self.out = nn.Linear(4, 2)

    def forward(self, tile):
        h = self.norm(tile)
        return self.out(torch.relu(self.conv(h)).amax((2, 3)))


def main():
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        tile = torch.rand(5, 2, 6, 6)
        if step == 2:
            tile[3, 1] = 0.5
        loss = nn.functional.cross_entropy(model(tile), torch.randint(0, 2, (5,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
