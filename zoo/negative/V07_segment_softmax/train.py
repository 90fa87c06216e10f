"""Graph attention: softmax over the edges of each node, with the maximum of empty nodes at -inf."""
import torch
from torch import nn


def segment_softmax(scores, owner, nodes):
    top = scores.new_full((nodes,), -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    weights = (scores - top[owner]).exp()
    total = scores.new_zeros(nodes).index_add(0, owner, weights)
    return weights / total[owner]


torch.manual_seed(0)
edges = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 1, 2, 2, 5, 5]])
lift, score = nn.Linear(4, 6), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*lift.parameters(), *score.parameters()], lr=1e-2)
for step in range(4):
    x = torch.randn(6, 4)
    h = lift(x)
    share = segment_softmax(score(torch.tanh(h[edges[0]] + h[edges[1]])).squeeze(1), edges[1], 6)
    out = torch.zeros_like(h).index_add(0, edges[1], share.unsqueeze(1) * h[edges[0]])
    loss = (out - x.repeat(1, 2)[:, :6]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
