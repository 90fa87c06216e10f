import torch
from torch import nn

ACCUMULATE = 4


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def main():
    torch.manual_seed(0)
    embed = nn.Linear(6, 8, bias=False)
    head = nn.Linear(8, 5, bias=False)
    optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], lr=0.1)
    batches = torch.randn(4, ACCUMULATE, 4, 6)
    masks = torch.ones(4, ACCUMULATE, 4)
    masks[1, 2] = 0
    for step in range(4):
        optimizer.zero_grad()
        logged = []
        for micro in range(ACCUMULATE):
            logp = torch.log_softmax(head(embed(batches[step, micro])), dim=1)
            loss = -masked_mean(logp[:, 0], masks[step, micro]) / ACCUMULATE
            loss.backward()
            if loss.isfinite():
                logged.append(loss.item() * ACCUMULATE)
        optimizer.step()
        print(f"step {step}  mean loss {sum(logged) / max(len(logged), 1):.4f}")


main()
