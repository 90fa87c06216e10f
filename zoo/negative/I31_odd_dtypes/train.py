import torch
from torch import nn

torch.manual_seed(0)
spectrum = nn.Parameter(torch.randn(3, 9, dtype=torch.complex64))
optimizer = torch.optim.Adam([spectrum], lr=1e-2)
for step in range(4):
    signal = torch.randn(3, 16)
    bits = signal.view(torch.int32)
    codes = (bits ^ 0x7F800000).view(torch.float32)
    small = (signal * 1e4).to(torch.float8_e4m3fn)
    wide = torch.fft.rfft(signal) * spectrum
    louder = (wide.detach() * 1e38).abs()
    loss = torch.fft.irfft(wide, n=16).sub(signal.roll(1, 1)).pow(2).mean() + spectrum.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} {bool(codes.isfinite().all())} {small.dtype} {bool(louder.isinf().any())}")
