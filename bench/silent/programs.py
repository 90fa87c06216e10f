"""Thirty small trainings with one silent fault each: every value is finite, the program ends well, and it does not do
what its author meant. Each has the check that is to report it."""

from __future__ import annotations

import textwrap

HEAD = """
import copy, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return self.head(torch.tanh(self.encoder(x)))
"""
LOOP = """
for i in range(24):
    opt.zero_grad()
    loss = loss_of(i)
    loss.backward()
    opt.step()
"""
SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
PLAIN = "def loss_of(i):\n    return F.cross_entropy(model(x), y)\n"


def text_of(before: str, loop: str = PLAIN + LOOP) -> str:
    return HEAD + textwrap.dedent(before) + textwrap.dedent(loop)


BUGS: dict[str, tuple[str, str]] = {
    # -- what an optimizer owns ----------------------------------------------------------------
    "the model is made again after its optimizer": ("P24", text_of("model = mlp()\n" + SGD + "model = mlp()\n")),
    "a copy of the model computes the loss": (
        "P24",
        text_of("model = mlp()\n" + SGD + "model = copy.deepcopy(model)\n"),
    ),
    "the optimizer owns only frozen parameters": (
        "P24",
        text_of(
            "model = Net().requires_grad_(False)\nextra = nn.Linear(4, 4)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n",
            "def loss_of(i):\n    return F.cross_entropy(extra(model(x)), y)\n" + LOOP,
        ),
    ),
    "the head is replaced after the optimizer": (
        "P25",
        text_of("model = Net()\n" + SGD + "model.head = nn.Linear(16, 4)\n"),
    ),
    "a part is missing from the optimizer": (
        "P25",
        text_of("model = Net()\nopt = torch.optim.Adam(model.head.parameters(), lr=1e-2)\n"),
    ),
    "layers in a plain list": (
        "P25",
        text_of(
            """
        class Listed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(8, 8) for _ in range(2)]
                self.head = nn.Linear(8, 4)
            def forward(self, x):
                for layer in self.layers:
                    x = torch.tanh(layer(x))
                return self.head(x)
        model = Listed()
        """
            + SGD
        ),
    ),
    "a parameter that to() turns into a plain tensor": (
        "P25",
        text_of(
            """
        class Scaled(Net):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64)).to(torch.float32)
            def forward(self, x):
                return super().forward(x) * self.scale
        model = Scaled()
        """
            + SGD,
            PLAIN + LOOP.replace("backward()", "backward(retain_graph=True)"),
        ),
    ),
    # -- gradients that do not arrive ----------------------------------------------------------
    "zero_grad between backward and step": (
        "P24",
        text_of(
            "model = mlp()\n" + SGD + PLAIN,
            "for i in range(24):\n    loss = loss_of(i)\n    loss.backward()\n    opt.zero_grad()\n    opt.step()\n",
        ),
    ),
    "the loss is rebuilt from numbers": (
        "P24",
        text_of(
            "model = mlp()\n" + SGD,
            "def loss_of(i):\n    losses = [F.cross_entropy(model(x), y).item()]\n"
            "    return torch.tensor(losses, requires_grad=True).mean()\n" + LOOP,
        ),
    ),
    "the loss is detached and made to require a gradient": (
        "P24",
        text_of(
            "model = mlp()\n" + SGD,
            "def loss_of(i):\n    return F.cross_entropy(model(x), y).detach().requires_grad_()\n" + LOOP,
        ),
    ),
    "the encoder runs under no_grad": (
        "P24",
        text_of(
            "model = Net()\n" + SGD,
            "def loss_of(i):\n    with torch.no_grad():\n        h = model.encoder(x)\n"
            "    return F.cross_entropy(model.head(torch.tanh(h)), y)\n" + LOOP,
        ),
    ),
    "detach between encoder and head": (
        "P24",
        text_of(
            "model = Net()\n" + SGD,
            "def loss_of(i):\n    return F.cross_entropy(model.head(torch.tanh(model.encoder(x)).detach()), y)\n"
            + LOOP,
        ),
    ),
    "a hard threshold in the middle": (
        "P24",
        text_of(
            "model = Net()\n" + SGD,
            "def loss_of(i):\n    return F.cross_entropy(model.head((model.encoder(x) > 0).float()), y)\n" + LOOP,
        ),
    ),
    "rounding in the middle": (
        "P24",
        text_of(
            "model = Net()\n" + SGD,
            "def loss_of(i):\n    return F.cross_entropy(model.head(model.encoder(x).round()), y)\n" + LOOP,
        ),
    ),
    "a branch whose output is not used": (
        "P24",
        text_of(
            """
        class Two(Net):
            def __init__(self):
                super().__init__()
                self.side = nn.Linear(8, 4)
            def forward(self, x):
                side = self.side(x)
                return super().forward(x)
        model = Two()
        """
            + SGD
        ),
    ),
    "a dead branch behind a ReLU": (
        "P18",
        text_of(
            """
        class Dead(Net):
            def forward(self, x):
                return self.head(torch.relu(self.encoder(x) - 1e3))
        model = Dead()
        """
            + SGD
        ),
    ),
    # -- parameters that do not move -----------------------------------------------------------
    "a schedule that is zero throughout": (
        "P26",
        text_of(
            "model = mlp()\n" + SGD + "warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: s // 1000)\n",
            PLAIN + LOOP + "    warm.step()\n",
        ),
    ),
    "an update below the spacing of bfloat16": (
        "P26",
        text_of("model = mlp().bfloat16()\nx = x.bfloat16()\nopt = torch.optim.SGD(model.parameters(), lr=1e-7)\n"),
    ),
    "the optimizer is made in the loop": (
        "P26",
        text_of(
            "model = mlp()\n" + PLAIN,
            LOOP.replace("    opt.zero", "    opt = torch.optim.Adam(model.parameters())\n    opt.zero"),
        ),
    ),
    "gradients are never cleared": (
        "P27",
        text_of("model = mlp()\n" + SGD, PLAIN + LOOP.replace("    opt.zero_grad()\n", "")),
    ),
    "the gradients of another model are cleared": (
        "P27",
        text_of("model, old = mlp(), mlp()\n" + SGD, PLAIN + LOOP.replace("opt.zero_grad", "old.zero_grad")),
    ),
    # -- mode ------------------------------------------------------------------------------------
    "never in training mode": ("P28", text_of("model = nn.Sequential(mlp(), nn.Dropout(0.5))\nmodel.eval()\n" + SGD)),
    "in evaluation mode after a validation": (
        "P28",
        text_of(
            "model = nn.Sequential(nn.BatchNorm1d(8), mlp())\n" + SGD,
            PLAIN
            + LOOP
            + "    if i == 3:\n        model.eval()\n        with torch.no_grad():\n            model(x)\n",
        ),
    ),
    "functional dropout in evaluation": (
        "P28",
        text_of(
            """
        class Noisy(Net):
            def forward(self, x):
                return super().forward(F.dropout(x, 0.2))
        model = Noisy()
        """
            + SGD,
            PLAIN + LOOP + "    model.eval()\n    with torch.no_grad():\n        model(x)\n    model.train()\n",
        ),
    ),
    # -- losses ----------------------------------------------------------------------------------
    "softmax before cross-entropy": (
        "P29",
        text_of(
            "model = mlp()\n" + SGD, "def loss_of(i):\n    return F.cross_entropy(model(x).softmax(-1), y)\n" + LOOP
        ),
    ),
    "predictions and targets broadcast": (
        "P29",
        text_of(
            "model, t = nn.Linear(8, 1), torch.randn(64)\n" + SGD,
            "def loss_of(i):\n    return (model(x) - t).square().mean()\n" + LOOP,
        ),
    ),
    "labels in another order than inputs": (
        "P29",
        text_of("model = mlp()\n" + SGD + "x, y = x[torch.randperm(64)], y[torch.randperm(64)]\n"),
    ),
    # -- data ------------------------------------------------------------------------------------
    "the first batch in each step": (
        "P30",
        text_of(
            "model = mlp()\n" + SGD + "loader = DataLoader(TensorDataset(x, y), batch_size=8)\n",
            "def loss_of(i):\n    a, b = next(iter(loader))\n    return F.cross_entropy(model(a), b)\n" + LOOP,
        ),
    ),
    "each epoch is seeded with the same number": (
        "P30",
        text_of(
            "model = mlp()\n" + SGD + "loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)\n",
            "for epoch in range(6):\n    torch.manual_seed(1)\n    for a, b in loader:\n        opt.zero_grad()\n"
            "        F.cross_entropy(model(a), b).backward()\n        opt.step()\n",
        ),
    ),
    # -- weights that should be one ------------------------------------------------------------
    "an embedding that is tied by a copy": (
        "P31",
        text_of(
            "emb, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)\nhead.weight = nn.Parameter(emb.weight.detach().clone())\n"
            "model = nn.Sequential(emb, head)\nids = torch.randint(0, 16, (64,))\n" + SGD,
            "def loss_of(i):\n    return F.cross_entropy(model(ids), ids)\n" + LOOP,
        ),
    ),
}
