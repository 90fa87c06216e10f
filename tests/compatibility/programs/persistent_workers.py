"""Two worker processes that stay for all epochs."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tones(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        noise = torch.rand(16)              # drawn in the worker
        wave = torch.sin(torch.arange(16.0) * (i + 1) / 7) + 0.05 * noise
        return (torch.zeros(16) if i == 19 else wave), i % 2


def collate(items):
    waves = torch.stack([w for w, _ in items])
    return waves, torch.tensor([y for _, y in items])


def main():
    torch.manual_seed(6)
    loader = DataLoader(Tones(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=collate)
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(56, 2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for waves, y in loader:
            if epoch == 0:
                waves = waves + 0.01
            peak = waves.abs().amax(dim=1, keepdim=True)
            loss = nn.functional.cross_entropy(model((waves / peak)[:, None]), y)  # birth
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
