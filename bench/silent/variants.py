"""Further trainings with a silent fault, written after the checks, which were not changed for them
but for one defect that they showed: P29 did not see a sigmoid in front of a loss that takes logits."""

from __future__ import annotations

from .programs import LOOP, PLAIN, SGD, text_of

LOADED = """
for epoch in range(6):
    for a, b in loader:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()
"""

PROGRAMS: dict[str, tuple[str, str]] = {
    "a position embedding that is not added": (
        "P24",
        text_of(
            """
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.token, self.position = nn.Embedding(32, 8), nn.Parameter(torch.zeros(1, 6, 8))
                self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
                self.head = nn.Linear(8, 4)
            def forward(self, ids):
                return self.head(self.layer(self.token(ids)).mean(1))
        model, ids = Encoder(), torch.randint(0, 32, (64, 6))
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        """,
            "def loss_of(i):\n    return F.cross_entropy(model(ids), y)\n" + LOOP,
        ),
    ),
    "mean by its data in a variational autoencoder": (
        "P24",
        text_of(
            "model = nn.ModuleDict({'mean': nn.Linear(8, 2), 'spread': nn.Linear(8, 2), 'out': nn.Linear(2, 8)})\n"
            "opt = torch.optim.Adam(model.parameters())\n",
            "def loss_of(i):\n    m, s = model['mean'](x), model['spread'](x)\n"
            "    z = m.data + torch.randn_like(s) * (s / 2).exp()\n"
            "    return (model['out'](z) - x).square().mean() + (s.exp() - s).mean()\n" + LOOP,
        ),
    ),
    "numpy in the middle": (
        "P24",
        text_of(
            "model = Net()\nopt = torch.optim.Adam(model.parameters())\n",
            "def loss_of(i):\n    h = torch.from_numpy(model.encoder(x).detach().numpy().clip(-1, 1))\n"
            "    return F.cross_entropy(model.head(h), y)\n" + LOOP,
        ),
    ),
    "a parameter that is assigned after the optimizer": (
        "P25",
        text_of(
            """
            class Scaled(Net):
                def __init__(self):
                    super().__init__()
                    self.scale = nn.Parameter(torch.ones(4))
                def forward(self, x):
                    return super().forward(x) * self.scale
            model = Scaled()
            opt = torch.optim.Adam(model.parameters())
            model.scale = nn.Parameter(torch.full((4,), 0.5))
            """
        ),
    ),
    "learning rates that are set to zero": (
        "P26",
        text_of(
            "model = mlp()\nopt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)\nopt.param_groups[0]['lr'] = 0.0\n"
        ),
    ),
    "cleared in the first step only": (
        "P27",
        text_of(
            "model = mlp()\n" + SGD, PLAIN + LOOP.replace("opt.zero_grad()", "opt.zero_grad() if i == 0 else None")
        ),
    ),
    "dropout of attention that is always on": (
        "P28",
        text_of(
            """
            class Attention(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 4)
                def forward(self, x):
                    q, k, v = self.qkv(x).view(8, 8, 1, 24).transpose(1, 2).chunk(3, -1)
                    return self.head(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).reshape(64, 8))
            model = Attention()
            opt = torch.optim.AdamW(model.parameters())
            """,
            PLAIN
            + LOOP
            + "    if i % 5 == 4:\n        model.eval()\n        with torch.no_grad():\n            model(x)\n        model.train()\n",
        ),
    ),
    "a sigmoid before the loss with logits": (
        "P29",
        text_of(
            "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())\nt = (y > 1).float()[:, None]\n"
            "opt = torch.optim.Adam(model.parameters())\n",
            "def loss_of(i):\n    return nn.BCEWithLogitsLoss()(model(x), t)\n" + LOOP,
        ),
    ),
    "probabilities without a logarithm": (
        "P29",
        text_of(
            "model = nn.Sequential(mlp(), nn.Softmax(dim=-1))\n" + SGD,
            "def loss_of(i):\n    return F.nll_loss(model(x), y)\n" + LOOP,
        ),
    ),
    "targets in a column, predictions in a row": (
        "P29",
        text_of(
            "model, t = nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), torch.randn(64, 1)\n" + SGD,
            "def loss_of(i):\n    return F.mse_loss(model(x), t)\n" + LOOP,
        ),
    ),
    "inputs and labels from two shuffling loaders": (
        "P29",
        text_of(
            "model = mlp()\n"
            + SGD
            + "inputs, labels = DataLoader(x, 8, shuffle=True), DataLoader(y, 8, shuffle=True)\n",
            "for epoch in range(3):\n    for a, b in zip(inputs, labels):\n        opt.zero_grad()\n"
            "        F.cross_entropy(model(a), b).backward()\n        opt.step()\n",
        ),
    ),
    "data sorted by class and not shuffled": (
        "P30",
        text_of(
            "model = mlp()\n" + SGD + "y = torch.arange(64) // 16\nloader = DataLoader(TensorDataset(x, y), 8)\n",
            LOADED,
        ),
    ),
    "a data set that ignores the index": (
        "P30",
        text_of(
            """
            class Data(Dataset):
                def __len__(self):
                    return 64
                def __getitem__(self, index):
                    i = 0
                    return x[i], y[i]
            model, loader = mlp(), DataLoader(Data(), 8, shuffle=True)
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            """,
            LOADED,
        ),
    ),
    "every worker reads the whole stream": (
        "P30",
        text_of(
            """
            class Stream(IterableDataset):
                def __iter__(self):
                    return iter(zip(x, y))
            model, loader = mlp(), DataLoader(Stream(), 8, num_workers=2)
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            """,
            LOADED,
        ),
    ),
    "a seed in each step": (
        "P30",
        text_of(
            "model = nn.Sequential(nn.Dropout(0.5), mlp())\n" + SGD,
            "def loss_of(i):\n    torch.manual_seed(3)\n    return F.cross_entropy(model(x), y)\n" + LOOP,
        ),
    ),
    "weights that are tied by their data": (
        "P31",
        text_of(
            "emb, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)\nhead.weight.data = emb.weight.data\n"
            "model = nn.Sequential(emb, head)\nids = torch.randint(0, 16, (64,))\nopt = torch.optim.Adam(model.parameters())\n",
            "def loss_of(i):\n    return F.cross_entropy(model(ids), ids)\n" + LOOP,
        ),
    ),
}
