"""Binary detector trained with a focal loss; the score temperature is annealed."""
import torch

GAMMA = 0.5
EPS = 1e-8


def focal_loss(p, target):
    p_true = p * target + (1 - p) * (1 - target)
    weight = torch.pow(1 - p_true, GAMMA)
    return -(weight * torch.log(p_true + EPS)).mean()


def main():
    torch.manual_seed(0)
    features = torch.randn(16, 5)
    target = (features[:, 0] > 0).float()
    weight = torch.nn.Parameter(torch.randn(5))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(6):
        sharpness = 1.0 if step < 2 else 300.0
        p = torch.sigmoid(features @ weight * sharpness)
        loss = focal_loss(p, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
