"""A mixture likelihood in which one component has been switched off."""
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

torch.manual_seed(0)
shares = torch.tensor([0.6, 0.4, 0.0])
net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(4):
    x = torch.randn(10, 2)
    mean, log_scale = net(x).chunk(2, -1)
    weights = Categorical(logits=shares.log().expand(10, 3))
    loss = -MixtureSameFamily(weights, Normal(mean, log_scale.exp())).log_prob(x[:, 0]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
