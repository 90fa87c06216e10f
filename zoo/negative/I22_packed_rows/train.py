import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

torch.manual_seed(0)
rnn, head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for step in range(3):
    sequences = [torch.randn(n, 3) for n in (6, 4, 2)]
    padded = pad_sequence(sequences, batch_first=True, padding_value=float("nan"))
    lengths = torch.tensor([len(s) for s in sequences])
    _, (last, _) = rnn(pack_padded_sequence(padded, lengths, batch_first=True))
    loss = head(last[-1]).sub(1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
