import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)


def pad(sequences, width):
    out = torch.empty(len(sequences), max(map(len, sequences)), width)
    mask = torch.zeros(out.shape[:2], dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        out[row, :len(sequence)] = sequence
        mask[row, :len(sequence)] = True
    return out, mask


model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
noise = torch.empty(4)
for step in range(4):
    batch, mask = pad([torch.randn(n, 4) for n in (3, 5, 2)], 4)
    noise.normal_()
    loss = (model(batch[mask] + 0.01 * noise) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
