"""Policy gradient with illegal actions masked out."""
import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(observations, 16), nn.Tanh(), nn.Linear(16, actions))

    def forward(self, observation, legal):
        return Categorical(logits=self.net(observation).masked_fill(~legal, float("-inf")))


def main():
    torch.manual_seed(0)
    policy = Policy(4, 5)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for step in range(6):
        observation = torch.randn(8, 4)
        legal = torch.rand(8, 5) > 0.3
        legal[:, 0] = True
        distribution = policy(observation, legal)
        action = distribution.sample()
        loss = -distribution.log_prob(action).mean() - 0.01 * distribution.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


main()
