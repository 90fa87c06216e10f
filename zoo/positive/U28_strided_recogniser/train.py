"""Speech recogniser: two strided convolutions in front of a CTC loss."""
import torch
from torch import nn


class Recogniser(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
                                   nn.Conv1d(16, 16, 3, stride=2, padding=1), nn.ReLU())
        self.rnn = nn.LSTM(16, 12, bidirectional=True)
        self.out = nn.Linear(24, symbols)

    def forward(self, frames, lengths):
        h, _ = self.rnn(self.front(frames).permute(2, 0, 1))
        return self.out(h).log_softmax(-1), (lengths + 3) // 4


def utterances(step):
    lengths = torch.tensor([48, 40, 36])
    spoken = torch.tensor([5, 4, 14 if step == 2 else 3])
    return torch.randn(3, 8, 48), lengths, torch.randint(1, 9, (int(spoken.sum()),)), spoken


torch.manual_seed(0)
model, criterion = Recogniser(9), nn.CTCLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for step in range(5):
    frames, lengths, targets, spoken = utterances(step)
    log_probs, lengths = model(frames, lengths)
    loss = criterion(log_probs, targets, lengths, spoken)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
