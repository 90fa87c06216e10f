"""Tiny acoustic model with a CTC head."""
import torch
from torch import nn

torch.manual_seed(0)

FRAMES, CLASSES = 6, 5


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, CLASSES)

    def forward(self, audio):
        return self.proj(audio).log_softmax(-1).transpose(0, 1)


def batches(count):
    for index in range(count):
        lengths = [2, 3] if index < 2 else [2, 7]
        labels = torch.randint(1, CLASSES, (sum(lengths),))
        yield torch.randn(2, FRAMES, 8), labels, torch.tensor(lengths)


model = Acoustic()
criterion = nn.CTCLoss(blank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (audio, labels, lengths) in enumerate(batches(6)):
    log_probs = model(audio)
    loss = criterion(log_probs, labels, torch.full((2,), FRAMES), lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} ctc {loss.item():.5f}")
