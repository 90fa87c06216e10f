"""A small GAN: the critic is fine, the generator takes the log of a vanishing score."""
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, noise, size):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(noise, 16), nn.ReLU(), nn.Linear(16, size))

    def forward(self, z):
        return self.net(z)


def train():
    torch.manual_seed(0)
    generator = Generator(3, 4)
    critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    c_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    bce = nn.BCEWithLogitsLoss()
    for step in range(5):
        real = torch.randn(8, 4) + 2
        fake = generator(torch.randn(8, 3))
        c_loss = bce(critic(real), torch.ones(8, 1)) + bce(critic(fake.detach()), torch.zeros(8, 1))
        c_optimizer.zero_grad()
        c_loss.backward()
        c_optimizer.step()
        if step == 3:
            with torch.no_grad():
                critic[2].bias.sub_(120)
        score = torch.sigmoid(critic(fake))
        g_loss = -torch.log(score).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        print(f"step {step} critic {c_loss.item():.4f} generator {g_loss.item():.4f}")


train()
