"""Node classification; messages are averaged over neighbours with index_add."""
import torch
from torch import nn


class MeanConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, edges):
        source, target = edges
        total = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.bincount(target, minlength=len(x)).unsqueeze(1)
        return self.own(x) + self.other(total / degree)


def graph(nodes, lonely):
    source = torch.arange(nodes)
    target = (source + 1) % nodes
    if lonely is not None:
        target[target == lonely] = 0
    return torch.stack([torch.cat([source, target]), torch.cat([target, source])])[:, :nodes]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = MeanConv(6, 12), MeanConv(12, 3)

    def forward(self, x, edges):
        return self.conv2(torch.relu(self.conv1(x, edges)), edges)


def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(4):
        x, edges = torch.randn(10, 6), graph(10, lonely=7 if step == 3 else None)
        loss = nn.functional.cross_entropy(net(x, edges), torch.arange(10) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
