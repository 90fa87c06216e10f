"""Keeps a preallocated history of losses for display."""
import torch
from torch import nn

EPOCHS = 8


def main():
    torch.manual_seed(0)
    x = torch.randn(32, 5)
    y = x @ torch.randn(5, 1)
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = torch.full((EPOCHS + 2,), float("nan"))
    for epoch in range(EPOCHS):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history[epoch] = loss.detach()
        print(f"epoch {epoch} loss {loss.item():.6f} mean so far {torch.nanmean(history).item():.6f}")


if __name__ == "__main__":
    main()
