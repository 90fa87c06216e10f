"""Fine-tunes the head of a saved network whose statistics were written by another job."""
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))


def saved():
    state = Net().state_dict()
    state["body.1.running_var"][3] *= float("nan")
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def main():
    torch.manual_seed(0)
    net = Net()
    net.load_state_dict(torch.load(saved(), weights_only=True))
    net.body.eval()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    for step in range(4):
        x, y = torch.randn(6, 2, 12), torch.randint(0, 2, (6,))
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
