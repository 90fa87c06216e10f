"""What the checks of batches, clipping, weights, attention and depth report: each clause of a check in a program where it
speaks. test_doctor_steps_silent.py has the twins in which it must not."""

import pytest

from doctor_support import assert_speaks

# check, verdict, a word of the text, options, body
SPEAKS = {
    "a mode that counts operations": (
        "P9",
        "note",
        "FlopCounterMode",
        (),
        """
        from torch.utils.flop_counter import FlopCounterMode
        with FlopCounterMode(display=False):
            for _ in range(3):
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()  # here
        """,
    ),
    "what modules would have named": (
        "P9",
        "note",
        "non-finite output is 0, after 1 steps",
        (),
        """
        for i in range(3):
            opt.zero_grad()
            if i:
                with torch.no_grad():
                    model[0].weight[0] = INF
            F.cross_entropy(model(x), y).backward()  # here
            opt.step()
        """,
    ),
    "a birth between modules": (
        "P9",
        "note",
        "no module gave a non-finite output",
        (),
        """
        for _ in range(3):
            (model(x) * 0).log().mean().backward()
            opt.step()
        """,
    ),
    "targets beyond 1": (
        "P11",
        "warn",
        "targets from 0.0 to 3.0",
        (),
        """
        t = torch.zeros(16, 4)
        t[3, 0] = 3.0
        for _ in range(3):
            opt.zero_grad()
            F.binary_cross_entropy_with_logits(model(x), t).backward()  # here
            opt.step()
        """,
    ),
    "an empty batch": (
        "P11",
        "bad",
        "no elements",
        (),
        """
        for _ in range(3):
            model(x[:0]).mean().backward()  # here
            opt.step()
        """,
    ),
    "blank samples of a loader": (
        "P11",
        "note",
        "1 of 4 samples of batch.0 have one value only, row 1 (samples 1",
        (),
        """
        x[1] = 0.0
        for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4):  # here
            opt.zero_grad()
            F.cross_entropy(model(a), b).backward()
            opt.step()
        """,
    ),
    "blank samples that are divided by their spread": (
        "P11",
        "warn",
        "0/0",
        (),
        """
        x[1] = 0.5
        for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4):  # here
            opt.zero_grad()
            F.cross_entropy(model((a - a.mean(1, keepdim=True)) / a.std(1, keepdim=True)), b).backward()
            opt.step()
        """,
    ),
    "Inf by clipping, applied": (
        "P13",
        "bad",
        "that was applied",
        (),
        """
        w = nn.Parameter(torch.tensor([1.0, 0.0]))
        opt = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            w.sqrt().sum().backward()
            nn.utils.clip_grad_norm_([w], 1.0)  # here
            opt.step()
        """,
    ),
    "spikes that nothing clips": (
        "P13",
        "note",
        "nothing clips it",
        ("--steps", "25"),
        """
        for i in range(30):
            opt.zero_grad()
            (F.cross_entropy(model(x), y) * (1e3 if i == 10 else 1)).backward()
            opt.step()  # here
        """,
    ),
    "a norm that overflowed, given": (
        "P13",
        "bad",
        "overflowed",
        (),
        """
        w = nn.Parameter(torch.ones(4))
        opt = torch.optim.SGD([w], lr=1e-30)
        for _ in range(3):
            opt.zero_grad()
            (w * 1e25).sum().backward()
            nn.utils.clip_grads_with_norm_([w], 1.0, nn.utils.get_total_norm([w.grad]))  # here
            opt.step()
        """,
    ),
    "a bad gradient in the last step seen": (
        "P14",
        "bad",
        "2 parameters changed",
        (),
        """
        model = nn.Linear(8, 4)
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(3):
            opt.zero_grad()
            (F.cross_entropy(model(x), y) * (NAN if i == 1 else 1)).backward()
            opt.step()  # here
        """,
    ),
    "an optimizer that makes NaN": (
        "P14",
        "bad",
        "though every gradient is finite",
        (),
        """
        class Odd(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                with torch.no_grad():
                    model[2].bias.div_(0)
        opt = Odd(model.parameters(), lr=0.01)
        for i in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()  # here
        """,
    ),
    "keys all masked, harmful": (
        "P16",
        "bad",
        "2 rows",
        (),
        """
        q = nn.Linear(8, 8)
        opt = torch.optim.SGD(q.parameters(), lr=0.01)
        m = torch.zeros(4, 4)
        m[0] = -INF
        for _ in range(3):
            h = q(x).view(2, 2, 4, 8)[:, :1]
            s = h @ h.transpose(-1, -2) + m
            (s.softmax(-1) @ h).square().mean().backward()  # here
            opt.step()
        """,
    ),
    "keys all masked, cut off": (
        "P16",
        "note",
        "are cut off",
        (),
        """
        q = nn.Linear(8, 8)
        opt = torch.optim.SGD(q.parameters(), lr=0.01)
        m = torch.ones(4, 4).bool()
        m[0] = False
        for _ in range(3):
            h = q(x).view(2, 2, 4, 8)
            F.scaled_dot_product_attention(h, h, h, attn_mask=m)[:, :, 1:].square().mean().backward()  # here
            opt.step()
        """,
    ),
    "a residual stream that grows": (
        "P17",
        "warn",
        "residual stream grows",
        (),
        """
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.f = nn.LayerNorm(8), nn.Linear(8, 8)
            def forward(self, x):
                return x + 10 * x.std() * self.f(self.norm(x)).tanh()
        body = nn.ModuleList(Block() for _ in range(12))
        opt = torch.optim.SGD(body.parameters(), lr=1e-12)
        def run(h):
            for b in body:
                h = b(h)
            return h
        class All(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = body
            def forward(self, h):
                return run(h)
        net = All()
        for _ in range(3):
            opt.zero_grad()
            (net(x) / 1e6).square().mean().backward()
            opt.step()
        """,
    ),
    "a layer without gradients": (
        "P18",
        "note",
        "2 of 6 parameters",
        (),
        """
        side = nn.Linear(8, 4)
        opt = torch.optim.SGD([*model.parameters(), *side.parameters()], lr=0.01)
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x) + 0 * side(x), y).backward()
            opt.step()  # here
        """,
    ),
    "a layer whose gradient grows": (
        "P18",
        "warn",
        "grew",
        ("--steps", "8"),
        """
        for i in range(9):
            opt.zero_grad()
            (model(x).mean() * 10.0 ** i).backward()
            for p in model.parameters():
                p.requires_grad_(True)
            opt.param_groups[0]["lr"] = 1e-20
            opt.step()  # here
        """,
    ),
    "no gradient in twenty steps": (
        "P18",
        "warn",
        "in 20 steps",
        ("--steps", "20"),
        """
        for _ in range(30):
            opt.zero_grad()
            (F.relu(model(x) - 1e6).sum() + 1).backward()
            opt.step()  # here
        """,
    ),
}


@pytest.mark.parametrize("case", SPEAKS.values(), ids=SPEAKS)
def test_speaks_of(tmp_path, case):
    assert_speaks(tmp_path, *case)
