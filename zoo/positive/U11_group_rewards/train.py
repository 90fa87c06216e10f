"""Group-relative policy optimisation on a toy bandit of prompts."""
import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, prompts, answers):
        super().__init__()
        self.embed = nn.Embedding(prompts, 16)
        self.head = nn.Linear(16, answers)

    def forward(self, prompt):
        return Categorical(logits=self.head(torch.tanh(self.embed(prompt))))


def advantages(rewards, groups):
    out = torch.empty_like(rewards)
    for group in groups.unique():
        inside = groups == group
        r = rewards[inside]
        out[inside] = (r - r.mean()) / (r.std() + 1e-4)
    return out


def main():
    torch.manual_seed(0)
    policy = Policy(10, 6)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    kept = {2: [4, 4, 4, 4, 7]}
    for step in range(5):
        groups = torch.tensor(kept.get(step, [1, 1, 1, 1, 5, 5, 5, 5]))
        policy_now = policy(groups)
        answer = policy_now.sample()
        reward = (answer == groups % 6).float() + 0.1 * torch.rand(len(groups))
        loss = -(policy_now.log_prob(answer) * advantages(reward, groups)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
