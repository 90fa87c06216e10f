import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
actor = nn.Linear(3, 2)
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
for step in range(4):
    state, action = torch.randn(6, 3), torch.randn(6, 2)
    old = Normal(actor(state), 1.0).log_prob(action).sum(1).detach()
    if step == 2:
        old[4] -= 150.0
    advantage = torch.rand(6) + 0.1
    new = Normal(actor(state), 1.0).log_prob(action).sum(1)
    ratio = torch.exp(new - old)
    loss = -(ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
