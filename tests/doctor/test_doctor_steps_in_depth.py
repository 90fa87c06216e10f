"""What the checks of first steps report in depth: each clause of a check in a program where it speaks.
test_doctor_steps_silent.py has the twins in which it must not."""

import textwrap

import pytest

from doctor_support import TRAINING, examine, found, line_of

# check, verdict, a word of the text, options, body
SPEAKS = {
    "autocast by a switch, and backward": (
        "P4",
        "warn",
        "autocast",
        (),
        """
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        for _ in range(3):
            torch.set_autocast_enabled("cpu", True)
            F.cross_entropy(model(x), y).backward()  # here
            opt.step()
        """,
    ),
    "bfloat16 weights that do not move": (
        "P4",
        "warn",
        "100 % of the elements",
        (),
        """
        model.bfloat16()
        opt = torch.optim.SGD(model.parameters(), lr=1e-7)
        for _ in range(3):
            F.cross_entropy(model(x.bfloat16()).float(), y).backward()
            opt.step()  # here
        """,
    ),
    "bfloat16 weights that move": (
        "P4",
        "note",
        "bfloat16",
        (),
        """
        model.bfloat16()
        opt = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            F.cross_entropy(model(x.bfloat16()).float(), y).backward()
            opt.step()  # here
        """,
    ),
    "a deprecated region under another name": (
        "P4",
        "note",
        "deprecated",
        (),
        """
        region = getattr(torch.cpu.amp, "auto" + "cast")
        for _ in range(3):
            with region(dtype=torch.bfloat16):  # here
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        """,
    ),
    "a loss scale that is too small": (
        "P5",
        "warn",
        "too small",
        (),
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):  # here
                loss = F.cross_entropy(model(x), y) * 1e-5
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "zeros that rise in float16": (
        "P5",
        "bad",
        "in the first step",
        (),
        """
        for i in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):  # here
                loss = F.cross_entropy(model(x), y) * (1.0 if i == 0 else 1e-12)
            loss.backward()
            opt.step()
        """,
    ),
    "backward after unscale_": (
        "P7",
        "bad",
        "backward is called after unscale_",
        (),
        """
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x[:8]), y[:8])).backward()
            scaler.unscale_(opt)
            scaler.scale(F.cross_entropy(model(x[8:]), y[8:])).backward()  # here
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "a step past the scaler": (
        "P7",
        "bad",
        "multiplied by the loss scale 1024",
        (),
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            opt.step()  # here
            scaler.update
        """,
    ),
    "a step past the scaler, unscaled": (
        "P7",
        "warn",
        "past the scaler",
        (),
        """
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            opt.step()  # here
        """,
    ),
    "clipped by value while scaled": (
        "P7",
        "bad",
        "while they are multiplied",
        (),
        """
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            getattr(nn.utils, "clip_grad_value_")(model.parameters(), 1.0)  # here
            scaler.step(opt)
            scaler.update()
        """,
    ),
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
    "a scale that collapses": (
        "P10",
        "bad",
        "steps skipped",
        (),
        """
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(24):
            opt.zero_grad()
            scaler.scale((model(x).half() * 60000.0 * 60000.0).float().mean()).backward()  # here
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "underflow at a high scale": (
        "P10",
        "note",
        "underflow",
        (),
        """
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y) * 1e-11
            scaler.scale(loss).backward()  # here
            scaler.step(opt)
            scaler.update()
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
    "logits of a bfloat16 head": (
        "P15",
        "warn",
        "neighbouring numbers differ by",
        (),
        """
        with torch.no_grad():
            model[2].weight.mul_(300)
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)  # here
            (loss * 1e-6).backward()
            opt.step()
        """,
    ),
    "logits that drift": (
        "P15",
        "warn",
        "drifts from",
        ("--steps", "20"),
        """
        scale = 1.0
        for _ in range(30):
            opt.zero_grad()
            F.cross_entropy(model(x) * scale + scale, y).backward()  # here
            scale *= 1.3
            for p in model.parameters():
                p.grad = torch.zeros_like(p) + 1e-9
            opt.step()
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
    check, verdict, word, options, body = case
    text = TRAINING.lstrip("\n") + textwrap.dedent(body)
    code, document, err = examine(tmp_path, text, *options)
    findings = [f for f in found(document, check) if word in f["text"]]
    assert [f["verdict"] for f in findings] == [verdict], (document["findings"], err)
    assert findings[0]["seen_in"] == "steps" and not document["trouble"]
    if "# here" in text:
        assert findings[0]["line"] == line_of(text, "# here"), findings
    assert (code == 1) == bool(found(document, verdicts=("bad",)))
