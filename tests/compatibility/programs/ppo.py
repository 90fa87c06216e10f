"""PPO on a two-armed toy: roll out, then several epochs of shuffled mini-batches."""
import numpy as np
import torch
from torch import nn


class Drift:
    """The state drifts with the action; the reward is how near it stays to zero."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state = np.zeros(2, dtype=np.float32)

    def act(self, action):
        self.state = 0.9 * self.state + self.rng.normal(size=2).astype(np.float32) * 0.1 + (0.2 if action else -0.2)
        return self.state, -float(np.abs(self.state).sum())


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 16), nn.Tanh())
        self.policy, self.value = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, s):
        h = self.body(s)
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


torch.manual_seed(7)
np.random.seed(7)
env, agent = Drift(1), ActorCritic()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
state, updates = env.state, 0
for iteration in range(4):
    buffer = []
    with torch.no_grad():
        for _ in range(16):
            dist, value = agent(torch.as_tensor(state))
            action = dist.sample()
            following, reward = env.act(action.item())
            if iteration == 2:
                reward = 0.0
                value = torch.zeros(())
            buffer.append((torch.as_tensor(state).clone(), action, dist.log_prob(action), value, reward))
            state = following
    states, actions, log_probs, values = (torch.stack([b[k] for b in buffer]) for k in range(4))
    returns = torch.tensor([sum(b[4] * 0.95 ** j for j, b in enumerate(buffer[i:])) for i in range(16)])
    advantages = returns - values
    for epoch in range(2):
        for index in np.array_split(np.random.permutation(16), 4):
            index = torch.as_tensor(index)
            batch_adv = advantages[index]
            batch_adv = (batch_adv - batch_adv.mean()) / batch_adv.std()  # birth
            dist, value = agent(states[index])
            ratio = (dist.log_prob(actions[index]) - log_probs[index]).exp()
            surrogate = torch.min(ratio * batch_adv, ratio.clamp(0.8, 1.2) * batch_adv).mean()
            loss = -surrogate + 0.5 * (value - returns[index]).pow(2).mean() - 0.01 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            updates += 1
            print(f"iteration {iteration} update {updates} loss {loss.item():.6f}")
    if iteration == 2:
        break
