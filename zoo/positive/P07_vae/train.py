import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Linear(5, 3, bias=False)
        self.logvar = nn.Linear(5, 3, bias=False)
        self.decoder = nn.Linear(3, 5, bias=False)

    def reparameterize(self, mu, logvar):
        std = torch.exp(logvar)
        return mu + torch.randn_like(mu) * std

    def forward(self, x):
        mu, logvar = self.mu(x), self.logvar(x)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


def main():
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(8, 5) for _ in range(6)]
    batches[2:] = [b * 200 for b in batches[2:]]
    for step, x in enumerate(batches):
        recon, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(dim=1).mean()
        loss = F.mse_loss(recon, x) + 0.01 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
