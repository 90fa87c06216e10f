"""A policy on [0, 1] with a Beta distribution, trained on clipped demonstrations."""
import torch
from torch import nn
from torch.distributions import Beta


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, state):
        alpha, beta = (nn.functional.softplus(self.net(state)) + 1).unbind(-1)
        return Beta(alpha, beta)


def demonstrations(batches):
    for number in range(batches):
        state = torch.randn(6, 4)
        action = torch.rand(6) * 0.9 + 0.05
        if number == 3:
            action[2] = (action[2] - 2).clamp(0, 1)
        yield state, action


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for step, (state, action) in enumerate(demonstrations(5)):
    log_prob = policy(state).log_prob(action)
    loss = -log_prob.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
