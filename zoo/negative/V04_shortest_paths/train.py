"""Learns node potentials from shortest-path lengths; unreachable pairs are infinite."""
import torch
from torch import nn


def all_pairs(weights):
    distance = weights.clone()
    for k in range(len(weights)):
        distance = torch.minimum(distance, distance[:, k:k + 1] + distance[k:k + 1, :])
    return distance


torch.manual_seed(0)
nodes = 9
weights = torch.full((nodes, nodes), float("inf"))
weights.fill_diagonal_(0)
for i in range(nodes - 1):
    if i != 4:
        weights[i, i + 1] = weights[i + 1, i] = float(1 + i % 3)
distance = all_pairs(weights)
reachable = distance.isfinite()
embedding = nn.Embedding(nodes, 4)
optimizer = torch.optim.Adagrad(embedding.parameters(), lr=0.1)
for step in range(4):
    predicted = torch.cdist(embedding.weight, embedding.weight)
    affinity = torch.exp(-distance)
    loss = (predicted - distance)[reachable].pow(2).mean() + (affinity * predicted).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
