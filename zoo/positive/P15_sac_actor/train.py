import torch
from torch import nn
from torch.distributions import Normal

MAX_ACTION = 2.0


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 2)

    def forward(self, state):
        dist = Normal(self.mean(state), 0.5)
        raw = dist.rsample()
        action = MAX_ACTION * torch.tanh(raw)
        squash = torch.log(1 - action.pow(2) + 1e-6)
        log_prob = dist.log_prob(raw) - squash
        return action, log_prob.sum(dim=1)


torch.manual_seed(0)
actor = Actor()
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
states = torch.randn(16, 4)
for step in range(5):
    action, log_prob = actor(states)
    loss = log_prob.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "actor loss", loss.item())
