"""Left-to-right hidden Markov model trained by its forward log-likelihood."""
import torch
from torch import nn

NEG = float("-inf")


class LeftToRight(nn.Module):
    def __init__(self, states, symbols):
        super().__init__()
        self.emission = nn.Parameter(0.1 * torch.randn(symbols, states))
        self.stay = nn.Parameter(torch.zeros(states))
        self.register_buffer("initial", torch.tensor([0.0] + [NEG] * (states - 1)))

    def forward(self, observations):
        log_prob = torch.log_softmax(self.emission, 0)
        log_stay, log_move = nn.functional.logsigmoid(self.stay), nn.functional.logsigmoid(-self.stay)
        alpha = self.initial + log_prob[observations[0]]
        for symbol in observations[1:]:
            moved = torch.cat([self.initial[-1:], (alpha + log_move)[:-1]])
            alpha = torch.logaddexp(alpha + log_stay, moved) + log_prob[symbol]
        return alpha[-1]


torch.manual_seed(0)
model = LeftToRight(states=3, symbols=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
observations = [0, 2, 1, 3, 3, 1]
for epoch in range(5):
    optimizer.zero_grad()
    loss = -model(observations)
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f}")
