import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", category=UserWarning)


def normalise(advantage):
    centred = advantage - advantage.mean()
    spread = advantage.std()
    return centred / (spread + 1e-8)


def main():
    torch.manual_seed(0)
    actor = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
    rollout = TensorDataset(torch.randn(9, 4), torch.randn(9))
    loader = DataLoader(rollout, batch_size=4, shuffle=True)
    update = 0
    for epoch in range(2):
        for obs, advantage in loader:
            adv = normalise(advantage)
            loss = -(adv * actor(obs).squeeze(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} update {update} loss {loss.item():.4f}")
            update += 1


if __name__ == "__main__":
    main()
