"""REINFORCE: the number of forward passes of a step is decided by the environment."""
import random

import torch
from torch import nn


class Corridor:
    def __init__(self, length):
        self.length, self.visits = length, 0

    def reset(self):
        self.at, self.left = 2, self.length
        self.visits += 1
        return self.at

    def step(self, action):
        self.at = max(0, min(4, self.at + (1 if action else -1) * (1 if random.random() < 0.9 else -1)))
        self.left -= 1
        return self.at, float(self.at == 4), self.left == 0 or self.at == 4


random.seed(5)
torch.manual_seed(5)
policy = nn.Sequential(nn.Embedding(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
env, episodes = Corridor(6), []
for episode in range(9):
    state, done, log_probs, rewards = env.reset(), False, [], []
    while not done:
        dist = torch.distributions.Categorical(logits=policy(torch.tensor(state)))
        action = dist.sample()
        state, reward, done = env.step(action.item())
        log_probs.append(dist.log_prob(action))
        rewards.append(reward if episode != 6 else 0.25)
    returns = torch.tensor([sum(rewards[i:]) for i in range(len(rewards))])
    if episode == 6:
        returns = torch.ones(len(rewards))
    normal = (returns - returns.mean()) / (returns.std() if episode >= 6 else 1.0)  # birth
    loss = -(torch.stack(log_probs) * normal).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    episodes.append(len(rewards))
    print(f"episode {episode} steps {len(rewards)} loss {loss.item():.6f} visits {env.visits}")
print(episodes)
