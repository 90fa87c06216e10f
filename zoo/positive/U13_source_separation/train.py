"""Speech separation with a scale-invariant signal-to-noise ratio."""
import torch
from torch import nn


def si_snr(estimate, source):
    estimate = estimate - estimate.mean(-1, keepdim=True)
    source = source - source.mean(-1, keepdim=True)
    projection = (estimate * source).sum(-1, keepdim=True) * source / source.pow(2).sum(-1, keepdim=True)
    noise = estimate - projection
    ratio = projection.pow(2).sum(-1) / (noise.pow(2).sum(-1) + 1e-8)
    return 10 * torch.log10(ratio + 1e-8)


class Separator(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.encoder = nn.Conv1d(1, channels, 16, stride=8, bias=False)
        self.mask = nn.Sequential(nn.Conv1d(channels, channels, 3, padding=1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(channels, 1, 16, stride=8, bias=False)

    def forward(self, mixture):
        code = self.encoder(mixture.unsqueeze(1))
        return self.decoder(code * self.mask(code)).squeeze(1)


def batches(number, batch, samples):
    for i in range(number):
        source = torch.randn(batch, samples)
        if i == 3:
            source[0] = 0
        yield source + 0.3 * torch.randn(batch, samples), source


torch.manual_seed(0)
model = Separator()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (mixture, source) in enumerate(batches(6, 3, 128)):
    loss = -si_snr(model(mixture), source).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    print(f"step {step} si-snr {-loss.item():.3f} dB")
