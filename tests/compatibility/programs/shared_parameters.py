"""Two tasks with an optimizer each; both own the shared trunk."""
import torch
from torch import nn

torch.manual_seed(13)
trunk = nn.Sequential(nn.Linear(5, 10), nn.Tanh())
heads = nn.ModuleDict({"age": nn.Linear(10, 1), "sex": nn.Linear(10, 2)})
optimizers = {name: torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=3e-3) for name, head in heads.items()}
data = [(torch.randn(7, 5), torch.rand(7, 1) * 80, torch.randint(0, 2, (7,))) for _ in range(8)]
data[5][1][3] = -2.0


def age_loss(out, age):
    return (out - torch.log(age)).pow(2).mean()  # birth


for i, (x, age, sex) in enumerate(data):
    shown = []
    for name in ("sex", "age"):
        out = heads[name](trunk(x))
        loss = age_loss(out, age) if name == "age" else nn.functional.cross_entropy(out, sex)
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()
        shown.append(f"{name} {loss.item():.6f}")
    print(i, *shown)
