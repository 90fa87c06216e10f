"""A collate function makes dicts, of which the loop takes the labels out before the rest goes to the model by keywords."""
import torch
from torch.utils.data import DataLoader


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 8)
        self.outer = torch.nn.Linear(8, 1)

    def forward(self, *, values, scale):
        spread = values.var(dim=1, keepdim=True, unbiased=False)
        return self.outer(torch.relu(self.inner(values * spread.rsqrt()))) * scale  # birth


def collate(items):
    return {"values": torch.stack([v for v, _ in items]), "scale": torch.ones(len(items), 1), "labels": torch.stack([l for _, l in items])}


torch.manual_seed(22)
samples = [(torch.randn(4), torch.randn(1)) for _ in range(48)]
samples[26] = (torch.full((4,), 0.5), samples[26][1])
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for number, batch in enumerate(DataLoader(samples, batch_size=6, collate_fn=collate)):
    labels = batch.pop("labels")
    loss = torch.nn.functional.mse_loss(model(**batch), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(number, sorted(batch), f"{loss.item():.6f}")
