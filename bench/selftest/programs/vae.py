"""A variational autoencoder: noise drawn in the model, an own autograd function, a loss of two terms, Adam."""

import torch
import torch.nn.functional as F
from torch import nn


class StraightThrough(torch.autograd.Function):
    """Rounds to 1/16, with the gradient of the identity, a little damped."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 16) / 16

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.99


class Autoencoder(nn.Module):
    def __init__(self, pixels=36, width=48, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.SiLU())
        self.mean, self.log_variance = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, pixels))

    def forward(self, x):
        features = self.encoder(x)
        mean, log_variance = self.mean(features), self.log_variance(features).clamp(-8, 8)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(StraightThrough.apply(z)), mean, log_variance


def loss_of(logits, x, mean, log_variance):
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return (reconstruction + divergence) / x.shape[0]


def main():
    torch.manual_seed(4)
    images = (torch.rand(80, 36) > 0.5).float()
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(10):
        x = images[torch.randint(0, 80, (20,))]
        optimizer.zero_grad()
        logits, mean, log_variance = model(x)
        loss = loss_of(logits, x, mean, log_variance)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
