"""Trainings that are connected as they should be, and look like one of programs.py; and where the repository has others."""

from __future__ import annotations

import pathlib
import textwrap

from .programs import LOOP, PLAIN, SGD, text_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKS = [f"P{i}" for i in range(24, 32)]  # those of silent faults


# Programs that are as they are meant, each close to one of the faults.
PROGRAMS: dict[str, str] = {
    "plain": text_of("model = mlp()\n" + SGD),
    "a backbone frozen on purpose": text_of("model = Net()\nmodel.encoder.requires_grad_(False)\n" + SGD),
    "a frozen backbone and an optimizer of the head": text_of(
        "model = Net()\nmodel.encoder.requires_grad_(False)\nopt = torch.optim.Adam(model.head.parameters())\n"
    ),
    "a fixed network in evaluation mode without gradients": text_of(
        "teacher, model = nn.Sequential(mlp(), nn.Dropout(0.5)).eval(), mlp()\n" + SGD,
        "def loss_of(i):\n    with torch.no_grad():\n        t = teacher(x)\n    return (model(x) - t).square().mean()\n"
        + LOOP,
    ),
    "a perceptual loss through a network that nobody trains": text_of(
        "fixed, model = mlp().eval(), nn.Linear(8, 8)\n" + SGD,
        "def loss_of(i):\n    return (fixed(model(x)) - fixed(x)).square().mean()\n" + LOOP,
    ),
    "two networks against each other": text_of(
        """
        g, d = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
        bce = F.binary_cross_entropy_with_logits
        """,
        """
        for i in range(24):
            fake = g(torch.randn(64, 4))
            od.zero_grad()
            (bce(d(x), ones) + bce(d(fake.detach()), zeros)).backward()
            od.step()
            og.zero_grad()
            bce(d(fake), ones).backward()
            og.step()
        """,
    ),
    "an averaged model": text_of(
        "model = nn.Sequential(nn.BatchNorm1d(8), mlp())\nema = torch.optim.swa_utils.AveragedModel(model)\n" + SGD,
        PLAIN + LOOP + "    ema.update_parameters(model)\n    with torch.no_grad():\n        ema.eval()(x)\n",
    ),
    "a momentum encoder": text_of(
        "model = nn.Sequential(mlp(), nn.Dropout(0.1))\nkey = copy.deepcopy(model).requires_grad_(False)\n" + SGD,
        "def loss_of(i):\n    with torch.no_grad():\n        for p, q in zip(key.parameters(), model.parameters()):\n"
        "            p.mul_(0.9).add_(q, alpha=0.1)\n    return (model(x) - key(x)).square().mean()\n" + LOOP,
    ),
    "batch normalisation frozen by train()": text_of(
        """
        class Frozen(Net):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(8)
            def train(self, mode=True):
                super().train(mode)
                self.norm.eval()
                return self
            def forward(self, x):
                return super().forward(self.norm(x))
        model = Frozen().train()
        """
        + SGD
    ),
    "sparse rows of an embedding": text_of(
        "emb, head = nn.Embedding(1000, 8, sparse=True), nn.Linear(8, 4)\nids = torch.randint(0, 5, (64,))\n"
        "model = nn.Sequential(emb, head)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        "def loss_of(i):\n    return F.cross_entropy(model(ids), y)\n" + LOOP,
    ),
    "a low-rank adapter": text_of("""
        class Lora(nn.Module):
            def __init__(self):
                super().__init__()
                self.base = mlp().requires_grad_(False)
                self.a, self.b = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 4))
            def forward(self, x):
                return self.base(x) + x @ self.a @ self.b
        model = Lora()
        opt = torch.optim.AdamW([model.a, model.b], lr=1e-2)
        """),
    "tied weights": text_of(
        "emb, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)\nhead.weight = emb.weight\n"
        "model = nn.Sequential(emb, head)\nids = torch.randint(0, 16, (64,))\n" + SGD,
        "def loss_of(i):\n    return F.cross_entropy(model(ids), ids)\n" + LOOP,
    ),
    "layers that are copies of each other": text_of(
        "layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\n"
        "model = nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(8, 4))\n"
        "x = x[:, None]\n" + SGD,
        "def loss_of(i):\n    return F.cross_entropy(model(x)[:, 0], y)\n" + LOOP,
    ),
    "gradients accumulated over micro-batches": text_of(
        "model = mlp()\n" + SGD,
        "for i in range(48):\n    (F.cross_entropy(model(x[i % 32 :]), y[i % 32 :]) / 2).backward()\n    if i % 2:\n"
        "        opt.step()\n        opt.zero_grad()\n",
    ),
    "a warm-up that begins at zero": text_of(
        "model = mlp()\n" + SGD + "warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, s / 10))\n",
        PLAIN + LOOP + "    warm.step()\n",
    ),
    "a straight-through estimator": text_of(
        "model = Net()\n" + SGD,
        "def loss_of(i):\n    h = model.encoder(x)\n    h = h + (h.sign() - h).detach()\n    return F.cross_entropy(model.head(h), y)\n"
        + LOOP,
    ),
    "quantised codes with a commitment": text_of(
        "model, codes = Net(), nn.Parameter(torch.randn(32, 16))\nopt = torch.optim.Adam([*model.parameters(), codes])\n",
        """
        def loss_of(i):
            h = model.encoder(x)
            q = codes[torch.cdist(h.detach(), codes.detach()).argmin(1)]
            z = h + (q - h).detach()
            return F.cross_entropy(model.head(z), y) + (q - h.detach()).square().mean() + (h - q.detach()).square().mean()
        """
        + textwrap.dedent(LOOP).replace("\n", "\n        "),
    ),
    "a stopped gradient of one of two views": text_of(
        "model, predict = mlp(), nn.Linear(4, 4)\nopt = torch.optim.SGD([*model.parameters(), *predict.parameters()], lr=0.1)\n",
        "def loss_of(i):\n    a, b = model(x + 0.1 * torch.randn_like(x)), model(x)\n"
        "    return -F.cosine_similarity(predict(a), b.detach()).mean()\n" + LOOP,
    ),
    "pseudo labels in evaluation mode": text_of(
        "model = nn.Sequential(nn.Dropout(0.2), mlp())\n" + SGD,
        "def loss_of(i):\n    model.eval()\n    t = model(x).detach().argmax(1)\n    model.train()\n"
        "    return F.cross_entropy(model(x), y) + 0.1 * F.cross_entropy(model(x), t)\n" + LOOP,
    ),
    "two inputs mixed": text_of(
        "model = mlp()\n" + SGD,
        "def loss_of(i):\n    p = torch.randperm(64)\n    z = model(0.7 * x + 0.3 * x[p])\n"
        "    return 0.7 * F.cross_entropy(z, y) + 0.3 * F.cross_entropy(z, y[p])\n" + LOOP,
    ),
    "data put in order by one permutation": text_of(
        "model = mlp()\n" + SGD + "p = torch.randperm(64)\nx, y = x[p], y[p]\n"
    ),
    "two loaders of pairs": text_of(
        "model = mlp()\n" + SGD + "one, two = (DataLoader(TensorDataset(x, y), 8, shuffle=True) for _ in range(2))\n",
        "for epoch in range(3):\n    for (a, b), (c, d) in zip(one, two):\n        opt.zero_grad()\n"
        "        (F.cross_entropy(model(a), b) + F.cross_entropy(model(c), d)).backward()\n        opt.step()\n",
    ),
    "one batch kept on purpose": text_of(
        "model = mlp()\n" + SGD + "a, b = next(iter(DataLoader(TensorDataset(x, y), 8, shuffle=True)))\n",
        "def loss_of(i):\n    return F.cross_entropy(model(a), b)\n" + LOOP,
    ),
    "a loader in a fixed order": text_of(
        "model = mlp()\n" + SGD + "loader = DataLoader(TensorDataset(x, y), 16)\n",
        "for epoch in range(6):\n    for a, b in loader:\n        opt.zero_grad()\n        F.cross_entropy(model(a), b).backward()\n"
        "        opt.step()\n",
    ),
    "validation after each epoch": text_of(
        "model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.2), mlp())\n"
        + SGD
        + "loader, held = DataLoader(TensorDataset(x, y), 16, shuffle=True), DataLoader(TensorDataset(x, y), 32)\n",
        "for epoch in range(6):\n    model.train()\n    for a, b in loader:\n        opt.zero_grad()\n"
        "        F.cross_entropy(model(a), b).backward()\n        opt.step()\n    model.eval()\n    with torch.no_grad():\n"
        "        for a, b in held:\n            model(a)\n",
    ),
    "dropout in evaluation on purpose": text_of(
        "model = nn.Sequential(mlp(), nn.Dropout(0.5))\n" + SGD,
        PLAIN
        + LOOP
        + "    model.eval()\n    model[1].train()\n    with torch.no_grad():\n        model(x)\n    model.train()\n",
    ),
    "inputs that are optimised through a model in evaluation mode": text_of(
        "model = nn.Sequential(mlp(), nn.Dropout(0.5)).eval()\nd = nn.Parameter(torch.zeros(64, 8))\n"
        "opt = torch.optim.SGD([d], lr=0.1)\n",
        "def loss_of(i):\n    return F.cross_entropy(model(x + d), y)\n" + LOOP,
    ),
    "an actor that is updated every second step": text_of(
        "actor, critic = nn.Linear(8, 2), nn.Linear(10, 1)\noa, oc = (torch.optim.Adam(m.parameters()) for m in (actor, critic))\n",
        "for i in range(40):\n    with torch.no_grad():\n        t = critic(torch.cat([x, actor(x)], 1))\n    oc.zero_grad()\n"
        "    (critic(torch.cat([x, torch.randn(64, 2)], 1)) - t).square().mean().backward()\n    oc.step()\n    if i % 2:\n"
        "        oa.zero_grad()\n        (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()\n        oa.step()\n",
    ),
    "differences of all pairs": text_of(
        "model, t = nn.Linear(8, 1), torch.randn(64)\n" + SGD,
        "def loss_of(i):\n    s = model(x)[:, 0]\n    return ((s[:, None] - s) - (t[:, None] - t)).square().mean()\n"
        + LOOP,
    ),
    "learning rates of which one is zero": text_of(
        "model = Net()\nopt = torch.optim.SGD([{'params': model.encoder.parameters(), 'lr': 0.0}, "
        "{'params': model.head.parameters()}], lr=0.1)\n",
    ),
    "stages that are trained one after the other": text_of(
        """
        model = Net()
        opt = torch.optim.Adam(model.head.parameters())
        model.encoder.requires_grad_(False)
        """,
        PLAIN
        + LOOP.replace(
            "opt.zero_grad()",
            "opt.zero_grad()\n    if i == 5:\n        model.encoder.requires_grad_(True)\n"
            "        opt.add_param_group({'params': model.encoder.parameters()})",
        ),
    ),
    "updates without an optimizer beside one": text_of(
        "model = Net()\nopt = torch.optim.SGD(model.head.parameters(), lr=0.1)\n",
        PLAIN
        + LOOP
        + "    with torch.no_grad():\n        for p in model.encoder.parameters():\n            p -= 0.1 * p.grad\n            p.grad = None\n",
    ),
}


def healthy_files():
    """{group: files}: what the repository has of trainings that are connected as they should be."""
    return {
        "negative cases of the zoo": sorted((ROOT / "zoo/negative").glob("*/train.py")),
        "programs of the table of compatibility": sorted((ROOT / "tests/compatibility/programs").glob("*.py")),
        "examples": sorted((ROOT / "examples").glob("*.py")),
    }
