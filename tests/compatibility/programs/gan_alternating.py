"""A GAN with a gradient penalty: the discriminator steps, then the generator."""
import torch
from torch import nn

torch.manual_seed(30)
G = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.9))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.9))


def real_batch(step):
    angle = torch.rand(8) * 6.28
    return torch.stack([angle.cos(), angle.sin()], 1)


for step in range(9):
    real, z = real_batch(step), torch.randn(8, 4)
    fake = G(z).detach()
    mix = (real * torch.rand(8, 1) + fake).requires_grad_()
    slope, = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
    loss_d = D(fake).mean() - D(real).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    z = torch.randn(8, 4)
    out = G(z)
    if step == 5:
        out = out * torch.zeros(8, 2)
    spread = out.norm(dim=1)
    diversity = (out / spread[:, None]).std(0).mean()  # birth
    loss_g = -D(out).mean() - 0.1 * diversity
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    print(f"{step} d {loss_d.item():.5f} g {loss_g.item():.5f}")
