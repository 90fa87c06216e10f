"""Self-training of a language head on its own top-k samples."""
import torch
import torch.nn.functional as F

K = 3


@torch.no_grad()
def sample(logits):
    threshold = logits.topk(K, dim=-1).values[:, -1:]
    filtered = logits.masked_fill(logits < threshold, -float("inf"))
    return torch.multinomial(F.softmax(filtered, -1), 1).squeeze(1)


def main():
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 10)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(6):
        logits = head(torch.randn(8, 6))
        loss = F.cross_entropy(logits, sample(logits))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
