"""CTC training on short transcripts."""
import torch
from torch import nn

FRAMES, BATCH, CLASSES = 8, 3, 5


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    criterion = nn.CTCLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        audio = torch.randn(FRAMES, BATCH, 6)
        labels = torch.tensor([[1, 2], [3, 4], [2, 3]])
        log_probs = model(audio).log_softmax(-1)
        loss = criterion(log_probs, labels, torch.full((BATCH,), FRAMES), torch.full((BATCH,), 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} ctc {loss.item():.6f}")


main()
