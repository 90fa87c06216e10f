import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(5, 3, bias=False)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
states = torch.randn(4, 5)
allowed = torch.ones(6, 4, 3, dtype=torch.bool)
allowed[1:, 2, 1] = False

for step in range(6):
    logits = policy(states).masked_fill(~allowed[step], float("-inf"))
    logp = torch.log_softmax(logits, dim=1)
    policy_loss = -logp[:, 0].mean()
    plogp = torch.exp(logp) * logp
    entropy = -plogp.sum(dim=1)
    loss = policy_loss - 0.01 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"update {step}: loss {loss.item():.4f} entropy {entropy.mean().item():.4f}")
