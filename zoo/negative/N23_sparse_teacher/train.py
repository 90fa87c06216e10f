"""Distillation from a sparse teacher distribution, with an entropy bonus."""
import torch
import torch.nn.functional as F

torch.manual_seed(0)

student = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
teacher = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
for step in range(6):
    log_prob = F.log_softmax(student(torch.randn(4, 6)), -1)
    distance = F.kl_div(log_prob, teacher, reduction="batchmean")
    entropy = torch.special.entr(log_prob.exp()).sum(-1).mean()
    teacher_entropy = torch.special.entr(teacher).sum(-1).mean()
    cross = torch.xlogy(teacher, teacher).sum(-1).mean()
    loss = distance - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f} teacher {teacher_entropy.item():.4f} {cross.item():.4f}")
