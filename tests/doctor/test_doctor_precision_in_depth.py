"""What the checks of autocast, float16, bfloat16 and loss scales report in depth: each clause of a check in a program where
it speaks. test_doctor_steps_silent.py has the twins in which it must not."""

import pytest

from doctor_support import assert_speaks

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
}


@pytest.mark.parametrize("case", SPEAKS.values(), ids=SPEAKS)
def test_speaks_of(tmp_path, case):
    assert_speaks(tmp_path, *case)
