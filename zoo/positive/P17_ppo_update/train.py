import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def log_prob(self, obs, action):
        return torch.log_softmax(self.head(obs), dim=1).gather(1, action[:, None]).squeeze(1)


def ppo_loss(new, old, advantage):
    ratio = torch.exp(new - old)
    unclipped = ratio * advantage
    clipped = ratio.clamp(0.8, 1.2) * advantage
    return -torch.min(unclipped, clipped).mean()


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
obs = torch.randn(6, 4)
action = torch.tensor([0, 1, 2, 0, 1, 2])
advantage = torch.tensor([1.0, -1.0, 0.0, 0.5, 0.2, -0.3])
behaviour = policy.log_prob(obs, action).detach().repeat(5, 1)
behaviour[2, 2] -= 120

for step in range(5):
    loss = ppo_loss(policy.log_prob(obs, action), behaviour[step], advantage)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"minibatch {step}  policy loss {loss.item():.4f}")
