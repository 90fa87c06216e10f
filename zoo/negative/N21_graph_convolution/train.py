"""Graph convolution with symmetric degree normalisation; one node has no edges."""
import torch
from torch import nn


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, adjacency):
        degree = adjacency.sum(1)
        inverse_root = degree.pow(-0.5)
        inverse_root = inverse_root.masked_fill(inverse_root == float("inf"), 0.0)
        normalised = inverse_root[:, None] * adjacency * inverse_root[None, :]
        return normalised @ self.linear(x)


def main():
    torch.manual_seed(0)
    adjacency = torch.zeros(4, 4)
    for i, j in [(0, 1), (1, 2), (0, 2)]:
        adjacency[i, j] = adjacency[j, i] = 1.0
    labels = torch.tensor([0, 1, 0, 1])
    model = GraphConvolution(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 5)
    for step in range(6):
        loss = nn.functional.cross_entropy(model(x, adjacency), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


main()
