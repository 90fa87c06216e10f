import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
token, head = nn.Linear(3, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*token.parameters(), *head.parameters()], lr=1e-2)
for step in range(4):
    sequences = [torch.randn(n, 3) for n in ((4, 4, 4) if step < 2 else (4, 4, 2))]
    padded = pad_sequence(sequences, batch_first=True, padding_value=float("nan"))
    mask = torch.arange(4) < torch.tensor([len(s) for s in sequences])[:, None]
    hidden = head(torch.tanh(token(padded))).squeeze(-1)
    loss = hidden[mask].sub(1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
