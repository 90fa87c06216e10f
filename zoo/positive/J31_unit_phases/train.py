import torch
from torch import nn


class Phase(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(bins, dtype=torch.complex64))

    def forward(self, signal):
        spectrum = torch.fft.rfft(signal) * self.filter
        unit = spectrum / spectrum.abs()
        return torch.fft.irfft(unit, n=signal.shape[-1])


torch.manual_seed(0)
model = Phase(9)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(4):
    signal = torch.randn(4, 16)
    if step == 2:
        signal[1] = 0
    loss = (model(signal) - signal).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
