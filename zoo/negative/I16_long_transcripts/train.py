import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 7)
criterion = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(4):
    frames = torch.randn(6, 3, 5)
    targets = torch.randint(1, 7, (3, 8))
    target_lengths = torch.tensor([2, 8, 3])
    log_probs = model(frames).log_softmax(-1)
    loss = criterion(log_probs, targets, torch.full((3,), 6), target_lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
