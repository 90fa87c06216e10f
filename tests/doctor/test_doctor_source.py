"""Checks of the source: a program in which each one speaks, at its line, and a twin in which none does."""

import textwrap

import pytest

from doctor_support import examine, found, line_of

LOOP = """
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
"""
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed(0)\n"

SPEAKS = {
    "tf32 by old and new names": (
        "P2",
        "warn",
        "torch.set_float32_matmul_precision('high')\ntorch.backends.cuda.matmul.fp32_precision = 'tf32'  # here\n",
    ),
    "tf32 on and off": (
        "P2",
        "warn",
        "torch.backends.cuda.matmul.allow_tf32 = False\ntorch.set_float32_matmul_precision('high')  # here\n",
    ),
    "a query that says yes": (
        "P3",
        "warn",
        "dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16  # here\n",
    ),
    "backward inside autocast": (
        "P4",
        "warn",
        """
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
                loss.backward()  # here
        """,
    ),
    "deprecated names": ("P4", "note", "from torch.cuda.amp import GradScaler as Scaler\nscaler = Scaler()  # here\n"),
    "float16 by its default and no scaler": (
        "P5",
        "warn",
        """
        for x, y in loader:
            with torch.cuda.amp.autocast():  # here
                loss = F.cross_entropy(model(x), y)
            loss.backward()
        """,
    ),
    "float16 by a variable and no scaler": (
        "P5",
        "warn",
        """
        kind = torch.half
        def step(x, y):
            with torch.autocast("cuda", kind):  # here
                loss = F.cross_entropy(model(x), y)
            loss.backward()
        """,
    ),
    "a scaler beside bfloat16": (
        "P6",
        "note",
        """
        scaler = torch.amp.GradScaler("cuda")  # here
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "clipped while scaled": (
        "P7",
        "bad",
        """
        from torch.nn.utils import clip_grad_norm_ as clip
        class Trainer:
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")
            def step(self, loss):
                self.scaler.scale(loss).backward()
                clip(model.parameters(), 1.0)  # here
                self.scaler.step(opt)
                self.scaler.update()
        """,
    ),
    "clipped, then unscaled": (
        "P7",
        "bad",
        """
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
            scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "unscaled twice": (
        "P7",
        "bad",
        """
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            log(opt)
            scaler.unscale_(opt)  # here
            scaler.step(opt)
            scaler.update()
        """,
    ),
    "float8 on any card": ("P3", "note", "model.cuda()\nw = w.to(torch.float8_e4m3fn)  # here\n"),
    "numpy without a seed": (
        "P19",
        "note",
        """
        import numpy as np
        for x, y in loader:
            loss = F.cross_entropy(model(x + np.random.rand()), y)  # here
            loss.backward()
        """,
    ),
    "Python's generator without a seed": (
        "P19",
        "note",
        """
        import random
        for x, y in loader:
            random.shuffle(x)  # here
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        """,
    ),
    "a scaler that is never updated": (
        "P7",
        "warn",
        """
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(loss).backward()
        scaler.step(opt)  # here
        """,
    ),
    "log of softmax": ("P8", "warn", "logp = torch.log(F.softmax(z, dim=-1))  # here\n"),
    "log of softmax by a variable": ("P8", "warn", "p = z.softmax(-1)\nlogp = p.log()  # here\n"),
    "log of sigmoid": ("P8", "warn", "logp = torch.sigmoid(z).log()  # here\n"),
    "anomaly mode": ("P9", "warn", "torch.autograd.set_detect_anomaly(True)  # here\n"),
    "anomaly mode around the loop": ("P9", "warn", "with torch.autograd.detect_anomaly():  # here\n    train()\n"),
    "a hook that tests for NaN": (
        "P9",
        "note",
        "def hook(m, i, o):\n    assert not torch.isnan(o).any()\nmodel.register_forward_hook(hook)  # here\n",
    ),
    "autotuning beside determinism": (
        "P19",
        "warn",
        "torch.use_deterministic_algorithms(True)\ntorch.backends.cudnn.benchmark = True  # here\n",
    ),
    "cublas without its workspace": ("P19", "note", "torch.use_deterministic_algorithms(True)  # here\nmodel.cuda()\n"),
}


@pytest.mark.parametrize("case", SPEAKS.values(), ids=SPEAKS)
def test_speaks_of(tmp_path, case):
    check, verdict, body = case
    text = HEAD + textwrap.dedent(body)
    code, document, _ = examine(tmp_path, text, "--static")
    (finding,) = found(document, check)
    assert (finding["verdict"], finding["line"]) == (verdict, line_of(text, "# here"))
    assert finding["text"] and finding["advice"] and finding["seen_in"] == "source"
    assert code == (1 if verdict == "bad" else 0)
    assert not [f for f in found(document, verdicts=("bad", "warn")) if f["check"] != check]


def test_speaks_of_training_that_is_never_seeded(tmp_path):
    code, document, _ = examine(tmp_path, "import torch\n" + LOOP, "--static")
    assert code == 0 and [f["check"] for f in found(document)] == ["P19"]


SILENT = {
    "a plain loop": LOOP,
    "tf32 by one name": "torch.set_float32_matmul_precision('high')\ntorch.backends.cudnn.allow_tf32 = True\n",
    "tf32 by two that agree": "torch.set_float32_matmul_precision('high')\ntorch.backends.cuda.matmul.allow_tf32 "
    "= True\n",
    "tf32 by its new names": "torch.backends.cuda.matmul.fp32_precision = "
    "'tf32'\ntorch.backends.cudnn.conv.fp32_precision = 'tf32'\n",
    "a query that excludes emulation": "b = torch.cuda.is_bf16_supported(including_emulation=False)\n",
    "autocast as it is meant": """
        scaler = torch.amp.GradScaler("cuda", enabled=fast)
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16, enabled=fast):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        """,
    "bfloat16 without a scaler": """
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """,
    "a scaler for float16 only": """
        dtype = torch.bfloat16 if new_card else torch.float16
        scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
        with torch.autocast("cuda", dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        """,
    "a region that is off inside autocast": """
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h = model(x)
            with torch.autocast("cuda", enabled=False):
                loss = F.cross_entropy(h.float(), y)
        loss.backward()
        """,
    "backward in autocast that is off": "with torch.autocast('cuda', enabled=False):\n    loss.backward()\n",
    "float16 in evaluation only": """
        @torch.no_grad()
        def evaluate():
            with torch.autocast("cuda", dtype=torch.float16):
                return model(x)
        loss.backward()
        """,
    "logarithms that are safe": "a = F.log_softmax(z, -1)\nb = torch.log(x.clamp(min=1e-7))\nc = "
    "math.log(sigmoid(3.0))\nd = (p + 1e-8).log()\n",
    "a log of something else of that name": "p = z.softmax(-1)\np = p.clamp(min=1e-6)\nlogp = p.log()\n",
    "a logger": "softmax = make()\nlogger = "
    "logging.getLogger()\nlogger.log(softmax)\nrun.log({'loss': 1})\nself.log('sigmoid', sigmoid(x))\n",
    "anomaly mode off or as an option": "torch.autograd.set_detect_anomaly(False)\ntorch.autograd.set_detect_anomaly(args.debug)\n"
    "if args.debug:\n    torch.autograd.set_detect_anomaly(True)\n",
    "a hook that collects": "model.register_forward_hook(lambda m, i, o: kept.append(o))\n",
    "determinism as it is meant": "import os\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = "
    "':4096:8'\ntorch.use_deterministic_algorithms(True)\n"
    "torch.backends.cudnn.benchmark = False\nmodel.cuda()\n",
    "unscaled for each optimizer, and in branches": """
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            scaler.unscale_(other)
            if fast:
                scaler.unscale_(third)
            else:
                scaler.unscale_(third)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        """,
    "float8 where the card is asked": "if torch.cuda.get_device_capability() >= (8, 9):\n    w = "
    "w.to(torch.float8_e4m3fn)\n",
    "generators that are all seeded": """
        import random
        import numpy as np
        random.seed(0)
        rng = np.random.default_rng(0)
        for x, y in loader:
            random.shuffle(x)
            loss = F.cross_entropy(model(x + rng.random()), y)
            loss.backward()
        """,
    "something else named random": """
        def random():
            return 4
        for x, y in loader:
            loss = F.cross_entropy(model(x), y) * random()
            loss.backward()
        """,
    "autotuning alone": "torch.backends.cudnn.benchmark = True\n",
    "words in strings and comments": "# torch.autograd.set_detect_anomaly(True)\ns = 'torch.log(F.softmax(z))'\n",
}


@pytest.mark.parametrize("body", SILENT.values(), ids=SILENT)
def test_silent_on(tmp_path, body):
    code, document, _ = examine(tmp_path, HEAD + textwrap.dedent(body), "--static")
    assert (code, document["findings"]) == (0, [])


def test_imported_modules_are_read_and_never_run(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").write_text("from .inner import head\nopen('ran', 'w')\n")
    (tmp_path / "parts/inner.py").write_text(
        "import torch\n\n\ndef head(z):\n    return torch.log(torch.softmax(z, -1))\n"
    )
    (tmp_path / "stranger.py").write_text("import torch\ntorch.log(torch.softmax(z, -1))\n")
    code, document, _ = examine(tmp_path, "import json\nfrom parts import head\nopen('ran', 'w')\n", "--static")
    (finding,) = document["findings"]
    assert code == 0 and finding["file"] == str(tmp_path / "parts/inner.py") and finding["line"] == 5
    assert not (tmp_path / "ran").exists()
