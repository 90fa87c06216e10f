"""A recurrent network with rectified units on sequences that get longer."""
import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.rnn = nn.RNN(inputs, hidden, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(hidden, 1)
        nn.init.eye_(self.rnn.weight_hh_l0)
        with torch.no_grad():
            self.rnn.weight_hh_l0.mul_(1.25)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])


torch.manual_seed(0)
model = Counter(3, 16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
lengths = [8, 12, 16, 24, 900]
for step, length in enumerate(lengths):
    x = torch.rand(4, length, 3)
    target = torch.rand(4, 1)
    loss = nn.functional.l1_loss(torch.tanh(model(x)), target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"length {length} loss {loss.item():.4f}")
