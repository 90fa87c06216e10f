"""Behaviour cloning of a squashed Gaussian policy from logged actions."""
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset


class Policy(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(observations, 32), nn.Tanh())
        self.mean = nn.Linear(32, actions)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def log_prob(self, observation, action):
        raw = torch.atanh(action)
        base = Normal(self.mean(self.trunk(observation)), self.log_std.exp())
        return (base.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)


def log_of_one_rover(steps):
    observations = torch.randn(steps, 8)
    throttle = 0.5 * torch.tanh(observations[:, :2])
    throttle[13, 1] = 1.0
    return TensorDataset(observations, throttle)


torch.manual_seed(0)
loader = DataLoader(log_of_one_rover(32), batch_size=4)
policy = Policy(8, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for step, (observation, action) in enumerate(loader):
    loss = -policy.log_prob(observation, action).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
