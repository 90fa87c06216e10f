import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)


def pad(sequences, width):
    out = torch.empty(len(sequences), max(map(len, sequences)), width)
    for row, sequence in enumerate(sequences):
        out[row, :len(sequence)] = sequence
    return out


model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(4):
    lengths = (3, 3, 3) if step < 2 else (3, 5, 2)
    batch = pad([torch.randn(n, 4) for n in lengths], 4)
    loss = (model(batch).mean(1) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
