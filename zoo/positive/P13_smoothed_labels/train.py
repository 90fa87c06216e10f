import torch
import torch.nn.functional as F
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6)
    y = torch.randint(0, 3, (8,))
    blocked = torch.zeros(8, 4, dtype=torch.bool)
    blocked[5, 3] = True
    for step in range(5):
        logits = model(x).masked_fill(blocked, float("-inf"))
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()}")


if __name__ == "__main__":
    main()
