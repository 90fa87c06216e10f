import torch
from torch import nn


def aspect_term(pred, gt):
    pw, ph = pred[:, 0], pred[:, 1]
    gw, gh = gt[:, 0], gt[:, 1]
    pred_angle = torch.atan(pw / ph)
    gt_angle = torch.atan(gw / gh)
    return (gt_angle - pred_angle).pow(2)


def main():
    torch.manual_seed(0)
    head = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    features = torch.randn(4, 4)
    padded = torch.tensor([[1.0, 2.0], [2.0, 1.0], [0.0, 0.0], [3.0, 1.0]])
    boxes = [padded + 1] + [padded] * 4
    for step, gt in enumerate(boxes):
        wh = head(features).exp()
        loss = aspect_term(wh, gt).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} box loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
