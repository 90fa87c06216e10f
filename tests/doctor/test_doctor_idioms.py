"""Healthy programs with NaN and Inf in them on purpose, and other usual ways to write a training: nothing to speak
of."""

import textwrap

import pytest

from doctor_support import TRAINING, examine, found

LOOP = "for _ in range(3):\n    opt.zero_grad()\n    loss = loss_of()\n    loss.backward()\n    opt.step()\n"
ATTEND = "q = nn.Linear(8, 24)\nopt = torch.optim.SGD(q.parameters(), lr=0.01)\nh = torch.randn(2, 6, 8)\n"

# Bodies of loss_of(); what stands before it is made once.
IDIOMS = {
    "plain": ("", "return F.cross_entropy(model(x), y)"),
    "causal mask by masked_fill": (
        ATTEND,
        """
        a, b, c = q(h).chunk(3, -1)
        s = (a @ b.transpose(1, 2) / 8 ** 0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -INF)
        return (s.softmax(-1) @ c).square().mean()""",
    ),
    "additive mask of finfo.min, twice": (
        ATTEND,
        """
        m = torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)
        a, b, c = q(h).chunk(3, -1)
        return ((a @ b.transpose(1, 2) / 8 ** 0.5 + m + m).softmax(-1) @ c).square().mean()""",
    ),
    "fused causal attention": (
        ATTEND,
        """
        a, b, c = (t.unsqueeze(1) for t in q(h).chunk(3, -1))
        return F.scaled_dot_product_attention(a, b, c, is_causal=True).square().mean()""",
    ),
    "a fully masked row that is cut off": (
        ATTEND,
        """
        keep = torch.ones(6, 6).tril(-1).bool()
        with torch.no_grad():
            torch.zeros(6, 6).masked_fill(~keep, -INF).softmax(-1)
        return q(h).square().mean()""",
    ),
    "multi-head attention with padding": (
        "m = nn.MultiheadAttention(8, 2, batch_first=True)\nopt = torch.optim.SGD(m.parameters(), "
        "lr=0.01)\nh = torch.randn(2, 6, 8)\n"
        "pad = torch.zeros(2, 6).bool()\npad[1, 4:] = True\n",
        "return m(h, h, h, key_padding_mask=pad)[0].square().mean()",
    ),
    "the double where": (
        "",
        """
        p = model(x)
        safe = torch.where(p > 0, p, torch.ones_like(p))
        return torch.where(p > 0, safe.log(), torch.zeros_like(p)).mean()""",
    ),
    "missing labels coded as NaN": (
        "t = torch.randn(16, 4)\nt[::3] = NAN\n",
        """
        ok = ~torch.isnan(t)
        return (model(x)[ok] - t[ok]).square().mean()""",
    ),
    "missing inputs coded as NaN": (
        "x[::4, 0] = NAN\n",
        """
        return F.cross_entropy(model(torch.nan_to_num(x)), y)""",
    ),
    "uninitialised memory": (
        "",
        """
        out = torch.empty(16, 4)
        out.fill_(NAN)
        out.copy_(model(x).detach())
        return (model(x) - out * 0).square().mean()""",
    ),
    "bests and maxima that begin at infinity": (
        "best = torch.tensor(INF)\n",
        """
        running = torch.full((4,), -INF)
        running = torch.maximum(running, model(x).detach().amax(0))
        return F.cross_entropy(model(x), y)""",
    ),
    "top-k filtering of logits": (
        "",
        """
        z = model(x)
        with torch.no_grad():
            z.masked_fill(z < z.topk(2).values[:, -1:], -INF).softmax(-1)
        return F.cross_entropy(z, y)""",
    ),
    "logits of impossible actions": (
        "",
        """
        z = model(x).masked_fill(torch.tensor([False, False, False, True]), -INF)
        return F.cross_entropy(z, y.clamp(max=2))""",
    ),
    "degrees to the power of -1/2": (
        "d = torch.tensor([0.0, 1.0, 2.0, 4.0])\n",
        """
        w = d.pow(-0.5)
        return F.cross_entropy(model(x) * w.masked_fill(torch.isinf(w), 0), y)""",
    ),
    "the spread of one element, logged": (
        "",
        """
        model(x)[:1].detach().std(dim=0)
        return F.cross_entropy(model(x), y)""",
    ),
    "some labels ignored": ("y[::2] = -100\n", "return F.cross_entropy(model(x), y, ignore_index=-100)"),
    "all labels ignored, by a sum": (
        "y[:] = -100\n",
        """
        return F.cross_entropy(model(x), y, reduction="sum") / y.ne(-100).sum().clamp(min=1) + model(x).square().mean()""",
    ),
    "segmentation labels with 255": (
        "model = nn.Conv2d(3, 5, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.01)\nx = torch.randn(2, 3, 4, 4)\n"
        "y = torch.randint(0, 5, (2, 4, 4))\ny[0, 0] = 255\n",
        "return F.cross_entropy(model(x), y, ignore_index=255)",
    ),
    "NaN in evaluation": (
        "",
        """
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(x), torch.full((16,), -100))
        model.train()
        return F.cross_entropy(model(x), y)""",
    ),
    "activations computed again": (
        "from torch.utils.checkpoint import checkpoint\n",
        "return F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)",
    ),
    "CTC with a target that is too long": (
        "model = nn.Linear(8, 5)\nopt = torch.optim.SGD(model.parameters(), lr=0.01)\n",
        """
        z = model(torch.randn(4, 2, 8)).log_softmax(-1)
        return F.ctc_loss(z, torch.ones(2, 9, dtype=torch.long), torch.tensor([4, 4]), torch.tensor([9, 2]), zero_infinity=True)""",
    ),
    "ratio clamped": ("", "r = (model(x) * 1e-3).exp()\nreturn torch.min(r, r.clamp(0.8, 1.2)).mean()"),
    "an adapter that begins at zero": (
        "a, b = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)\nnn.init.zeros_(b.weight)\n"
        "opt = torch.optim.AdamW([*a.parameters(), *b.parameters()], lr=1e-3)\n",
        "return F.cross_entropy(model(x) + b(a(x)), y)",
    ),
    "a head that begins at zero": (
        "nn.init.zeros_(model[2].weight)\nnn.init.zeros_(model[2].bias)\n",
        "return F.cross_entropy(model(x), y)",
    ),
    "a parameter that is not used": (
        "spare = nn.Linear(3, 3)\nopt.add_param_group({'params': spare.parameters()})\n",
        "return F.cross_entropy(model(x), y)",
    ),
    "a deep residual network": (
        "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n        "
        "self.n, self.f = nn.LayerNorm(8), nn.Linear(8, 8)\n"
        "    def forward(self, x):\n        return x + self.f(self.n(x))\n"
        "model = nn.Sequential(*[Block() for _ in range(12)], nn.Linear(8, 4))\nopt = "
        "torch.optim.AdamW(model.parameters(), lr=1e-3)\n",
        "return F.cross_entropy(model(x), y)",
    ),
    "a compiled model": ("model = torch.compile(model)\n", "return F.cross_entropy(model(x), y)"),
    "a gradient penalty": (
        "",
        """
        a = x.clone().requires_grad_()
        g, = torch.autograd.grad(model(a).sum(), a, create_graph=True)
        return F.cross_entropy(model(a), y) + (g.norm(dim=1) - 1).square().mean()""",
    ),
}


@pytest.mark.parametrize("case", IDIOMS.values(), ids=IDIOMS)
def test_silent_on(tmp_path, case):
    before, body = case
    text = (
        TRAINING
        + before
        + "def loss_of():\n"
        + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        + "\n"
        + LOOP
    )
    code, document, err = examine(tmp_path, text)
    assert not found(document, verdicts=("bad", "warn")), document["findings"]
    assert (code, document["trouble"], document["not_looked_at"]) == (0, [], []), err


LOOPS = {
    "a limit of infinity": """
        for _ in range(30):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), INF)
            opt.step()
        """,
    "a scaler that finds its scale": """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
        for _ in range(20):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        """,
    "a scaler and several micro-batches": """
        scaler = torch.amp.GradScaler("cpu")
        for i in range(8):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / 2
            scaler.scale(loss).backward()
            if i % 2:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        """,
    "two optimizers and one scaler": """
        other = nn.Linear(4, 1)
        opt2 = torch.optim.SGD(other.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad(), opt2.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = other(model(x)).square().mean()
            scaler.scale(loss).backward()
            for o, m in ((opt, model), (opt2, other)):
                scaler.unscale_(o)
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                scaler.step(o)
            scaler.update()
        """,
    "two networks against each other": """
        critic = nn.Linear(4, 1)
        opt2 = torch.optim.Adam(critic.parameters(), lr=1e-3)
        for _ in range(3):
            opt2.zero_grad()
            (critic(model(x).detach()).mean() - critic(torch.randn(16, 4)).mean()).backward()
            nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
            opt2.step()
            opt.zero_grad()
            (-critic(model(x)).mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        """,
    "a step that the script leaves out itself": """
        for i in range(5):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y) * (NAN if i == 1 else 1)
            if not torch.isfinite(loss):
                continue
            loss.backward()
            opt.step()
        """,
    "LBFGS": """
        opt = torch.optim.LBFGS(model.parameters(), lr=0.1)
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss
        for _ in range(3):
            opt.step(closure)
        """,
    "a loader with workers": """
        data = torch.utils.data.TensorDataset(x, y)
        for a, b in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2):
            opt.zero_grad()
            F.cross_entropy(model(a), b).backward()
            opt.step()
        """,
    "bfloat16 by autocast": """
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        """,
    "a second model that follows": """
        from torch.optim.swa_utils import AveragedModel
        follower = AveragedModel(model)
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            follower.update_parameters(model)
        """,
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
def test_silent_on_a_loop_with(tmp_path, body):
    code, document, err = examine(tmp_path, TRAINING + textwrap.dedent(body))
    assert not found(document, verdicts=("bad", "warn")), document["findings"]
    assert (code, document["trouble"], document["not_looked_at"]) == (0, [], []), err
