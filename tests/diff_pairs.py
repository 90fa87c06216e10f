"""Pairs of recorded steps that differ in one known place, made by a seeded generator.

Each pair is a small network drawn at random and one change to it. What is right is known by construction: the change
goes through a mark in the program, and the step is recorded a second time up to that mark, so the number of calls
before it is known, and with it which call is the first that can differ."""

import contextlib
import dataclasses
import json
import random

import torch
import torch.nn.functional as F
from torch import nn

PAIRS = {}


@dataclasses.dataclass
class Truth:
    """What the comparison has to find: `kind` as in docs/diff.md, or "quiet": no divergence, at most rounding."""

    kind: str
    op: str = ""  # of the call in A, or the first that only one side has
    arguments: tuple = ()  # (arg, A, B), as the numbers they are
    name: str = ""  # of the input: "parameter x.weight"; "": data
    only_a: tuple = ()  # operators that must be named as standing on one side
    only_b: tuple = ()
    behind: int = 0  # calls between the mark and the one that differs: kernels that first ask for memory
    anywhere: bool = False  # not the very call at the mark, but one behind it
    rows: tuple = ()


# Other ways to leave elements out. The first four draw the same numbers as F.dropout does, by other calls.
DROPOUTS = {
    "fused": lambda y, p: torch.native_dropout(y, p, True)[0],
    "divided at last": lambda y, p: torch.bernoulli(torch.empty_like(y), 1 - p) * y / (1 - p),
    "in three": lambda y, p: torch.empty_like(y).bernoulli_(1 - p) * y * (1 / (1 - p)),
    "operands turned": lambda y, p: torch.empty_like(y).bernoulli_(1 - p).div_(1 - p).mul(y),
    "by rand": lambda y, p: (torch.rand_like(y) >= p).to(y.dtype) * y * (1 / (1 - p)),
    "by where": lambda y, p: torch.where(torch.rand(y.shape) < p, torch.zeros(()), y / (1 - p)),
    "of a tensor": lambda y, p: torch.bernoulli(torch.full_like(y, 1 - p)).div(1 - p) * y,
    "behind another": lambda y, p: (torch.rand(3), F.dropout(y, p))[1],
}


class Reached(Exception):
    pass


class Program:
    """One step of a network with random sizes and layers; of the pair `name` A, or B where it is changed. Ends at
    `stop`."""

    def __init__(self, seed, name, changed, stop=None):
        self.name, self.changed, self.stop = name, changed, stop
        draw = self.draw = random.Random(seed)
        self.width, self.batch = draw.choice([8, 12, 16, 20]), draw.choice([6, 8, 10])
        self.depth = draw.randrange(2, 5)
        self.site = draw.randrange(self.depth)  # the layer in which the change is
        self.classes = draw.randrange(4, 7)
        self.norms = [draw.random() < 0.5 for _ in range(self.depth)]
        self.drops = [draw.random() < 0.4 for _ in range(self.depth)]
        self.residuals = [draw.random() < 0.5 for _ in range(self.depth)]
        self.acts = [draw.choice([torch.relu, F.gelu, torch.tanh, F.silu]) for _ in range(self.depth)]
        # The layer with the change has what the change is about.
        self.norms[self.site] = self.drops[self.site] = True
        self.acts[self.site] = torch.relu
        self.residuals[self.site] = False
        self.clip, self.optimizer_name = 1e-3, draw.choice(["AdamW", "SGD"])
        if name.startswith("optimizer"):
            self.optimizer_name = "AdamW"
        torch.manual_seed(seed)
        self.model = nn.ModuleDict({f"l{i}": nn.Linear(self.width, self.width) for i in range(self.depth)})
        self.model.update({f"n{i}": nn.LayerNorm(self.width) for i in range(self.depth) if self.norms[i]})
        self.model["head"] = nn.Linear(self.width, self.classes)
        self.model["bn"] = nn.BatchNorm1d(self.width)
        self.data = torch.randn(2 * self.batch, self.width)
        self.labels = torch.randint(0, self.classes, (self.batch,))
        self.mask = torch.rand(self.batch, self.classes) < 0.3
        self.mask[:, 0] = False
        self.row = draw.randrange(self.batch)
        self.prepare()

    def is_(self, name):
        return self.changed and name in self.name.split(", ")

    def dropout(self, y, p):
        for name, way in DROPOUTS.items():
            if self.is_("dropout " + name):
                return way(y, p)
        return F.dropout(y, p)

    def mark(self, name):
        if self.stop == name:
            raise Reached

    def prepare(self):
        with torch.no_grad():
            if self.is_("weight"):
                self.model[f"l{self.site}"].weight[1, 2] += 0.05
            if self.is_("buffer"):
                self.model["bn"].running_mean += 0.3
        kind, options = torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01, "foreach": False}
        if self.is_("optimizer lr"):
            options["lr"] = 2e-3
        if self.is_("optimizer weight decay"):
            options["weight_decay"] = 0.1
        if self.is_("optimizer fused"):
            options.update(foreach=None, fused=True)
        if self.is_("optimizer foreach"):
            options["foreach"] = True
        if self.is_("optimizer betas"):
            options["betas"] = (0.9, 0.95)
        if self.optimizer_name == "SGD":
            kind, options = torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "foreach": False}
        self.optimizer = kind(self.model.parameters(), **options)

    def layer(self, i, x):
        here = i == self.site
        y = x
        if here:
            self.mark("linear")
        if here and self.is_("float64 part"):
            y = F.linear(y.double(), self.model[f"l{i}"].weight.double(), self.model[f"l{i}"].bias.double()).float()
        elif here and self.is_("autocast"):
            with torch.autocast("cpu", torch.bfloat16):
                y = self.model[f"l{i}"](y)
            y = y.float()
        else:
            y = self.model[f"l{i}"](y)
        if here and self.is_("nothing added"):
            y = y + 0.0
        if here:
            self.mark("norm")
        if self.norms[i]:
            norm = self.model[f"n{i}"]
            eps = 1e-3 if here and self.is_("norm eps") else 1e-5
            y = F.layer_norm(y, (self.width,), norm.weight, norm.bias, eps)
        if here:
            self.mark("act")
        if here and self.is_("activation"):
            y = F.elu(y)
        elif here and self.name == "slope":
            y = F.leaky_relu(y, 0.2 if self.changed else 0.1)
        else:
            y = self.acts[i](y)
        if here:
            self.mark("drop")
            if self.is_("drop seed"):
                torch.manual_seed(999)
        if self.drops[i] and not (here and self.is_("no dropout")):
            y = (
                self.dropout(y, 0.2)
                if here and not self.is_("drop p")
                else F.dropout(y, 0.3 if self.is_("drop p") and here else 0.2)
            )
        if self.residuals[i] or (here and self.is_("residual")):
            y = y + x
        if here:
            self.mark("scale")
        return y * (0.25 if here and self.is_("scale") else 0.5)

    def loss(self):
        x = self.data[1 : self.batch + 1].clone()
        if self.is_("batch row"):
            x[self.row] = self.data[self.batch + 2]
        if self.is_("nan in data"):
            x[self.row, 3] = float("nan")
        x = torch.from_numpy(x.numpy())  # a batch: the step has no part in how it was made
        self.start()
        self.model["bn"].eval()
        self.mark("begin")
        x = self.model["bn"](x)
        for i in range(self.depth):
            x = self.layer(i, x)
        logits = self.model["head"](x)
        self.mark("fill")
        logits = logits.masked_fill(self.mask, -1e2 if self.is_("fill") else -1e4)
        self.mark("softmax")
        if self.is_("softmax written out"):
            e = torch.exp(logits - logits.max(1, keepdim=True).values)
            p = e / e.sum(1, keepdim=True)
        else:
            p = torch.softmax(logits, 1)
        self.mark("log")
        entropy = -(p * torch.log(p + (1e-6 if self.is_("log eps") else 1e-8)))
        self.mark("sum")
        entropy = entropy.sum(0).sum() if self.is_("sum order") else entropy.sum()
        self.mark("loss")
        smoothing = 0.1 if self.is_("smoothing") else 0.0
        return F.cross_entropy(logits.clamp(min=-50), self.labels, label_smoothing=smoothing) + 0.01 * entropy

    def start(self):
        torch.manual_seed(7)
        from finitude import _native

        _native.tape_start()

    def step(self):
        loss = self.loss()
        loss.backward()
        self.mark("clip")
        torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.clip * (2 if self.is_("clip") else 1), foreach=False
        )
        self.mark("optimizer")
        self.optimizer.step()
        return loss


def record(native, program, threads=1):
    """Records that program's second step; the tape is then in hand. The number of threads is part of it."""
    torch.set_num_threads(threads)
    try:
        with contextlib.suppress(Reached):
            loss = program.step()
            native.tape_stop()
            native.tape_outcome("loss", "loss", loss.detach())
            for name, p in program.model.named_parameters():
                native.tape_outcome("parameter", name, p.detach())
        native.tape_stop()
        for name, p in program.model.named_parameters():
            native.tape_name(p, "parameter", name)
        for name, b in program.model.named_buffers():
            native.tape_name(b, "buffer", name)
    finally:
        torch.set_num_threads(1)


def pair(name, mark, truth, threads=1):
    PAIRS[name] = (mark, truth, threads)


pair("norm eps", "norm", Truth("argument", "aten::native_layer_norm", (("eps", 1e-5, 1e-3),)))
pair("log eps", "log", Truth("argument", "aten::add", (("other", 1e-8, 1e-6),)))
pair("activation", "act", Truth("operators", "aten::relu", only_a=("aten::relu",), only_b=("aten::elu",)))
pair("slope", "act", Truth("argument", "aten::leaky_relu", (("negative_slope", 0.1, 0.2),)))
pair("nothing added", "norm", Truth("quiet", only_b=("aten::add",)))
pair("no dropout", "drop", Truth("operators", only_a=("aten::bernoulli_",)))
pair("drop p", "drop", Truth("argument", "aten::bernoulli_", (("p", 0.8, 0.7),), behind=1))
pair("drop seed", "drop", Truth("random", "aten::bernoulli_", behind=1))
pair("weight", "linear", Truth("input", "aten::addmm", name="parameter l{site}.weight"))
pair("buffer", "begin", Truth("input", "aten::native_batch_norm", name="buffer bn.running_mean", behind=1))
pair("batch row", "begin", Truth("input", "aten::native_batch_norm", rows=("row",), behind=1))
pair("nan in data", "begin", Truth("input", "aten::native_batch_norm", rows=("row",), behind=1))
pair("residual", "scale", Truth("operators", only_b=("aten::add",)))
pair("scale", "scale", Truth("argument", "aten::mul", (("other", 0.5, 0.25),)))
pair("fill", "fill", Truth("argument", "aten::masked_fill", (("value", -1e4, -1e2),)))
pair("smoothing", "loss", Truth("operators", anywhere=True))
pair("clip", "clip", Truth("argument", "aten::mul", (("other", 1e-3, 2e-3),), anywhere=True))
pair("optimizer lr", "optimizer", Truth("argument", anywhere=True))
pair("optimizer weight decay", "optimizer", Truth("argument", anywhere=True))
pair("optimizer betas", "optimizer", Truth("argument", anywhere=True))
pair("softmax written out", "softmax", Truth("quiet", only_a=("aten::_softmax",), only_b=("aten::exp",)))
pair("sum order", "sum", Truth("quiet"))
pair("float64 part", "linear", Truth("quiet"))
pair("autocast", "linear", Truth("quiet"))
pair("optimizer fused", "optimizer", Truth("quiet", only_b=("aten::_fused_adamw_",)))
pair("optimizer foreach", "optimizer", Truth("quiet", only_b=("aten::_foreach_add_",)))
pair("threads", "begin", Truth("quiet"), threads=2)
pair("nothing", "begin", Truth("quiet"))
for way, alone in (
    ("fused", "native_dropout"),
    ("divided at last", "div"),
    ("in three", "mul"),
    ("operands turned", ""),
):
    lone = ("aten::" + alone,) if alone else ()
    pair(f"dropout {way}", "drop", Truth("quiet", only_b=lone))
    pair(f"dropout {way}, scale", "scale", Truth("argument", "aten::mul", (("other", 0.5, 0.25),), only_b=lone))
for way, drawn in (("by rand", "rand_like"), ("by where", "rand")):
    pair(
        f"dropout {way}",
        "drop",
        Truth("random", "aten::bernoulli_", only_a=("aten::bernoulli_",), only_b=("aten::" + drawn,), behind=1),
    )
pair("dropout of a tensor", "drop", Truth("random", "aten::bernoulli_", behind=1))
pair("dropout by rand, norm eps", "norm", Truth("argument", "aten::native_layer_norm", (("eps", 1e-5, 1e-3),)))
pair("dropout behind another", "drop", Truth("random", "aten::bernoulli_", only_b=("aten::rand",), behind=1))


def make(name, seed, folder, native):
    """The two capsules of that pair, how many calls A makes before the change, and the program of A."""
    from finitude.capsules import capsule

    mark, _, threads = PAIRS[name]
    paths = []
    for letter, changed in (("a", False), ("b", True)):
        program = Program(seed, name, changed)
        record(native, program, threads if changed else 1)
        paths.append(str(folder / f"{name.replace(' ', '-')}-{seed}-{letter}"))
        about = json.dumps({"kind": "finitude capsule", "torch": torch.__version__, "step": 1})
        why, replayed = native.capsule_write(paths[-1], about, 1 << 30, False, 1 << 30, capsule._source_of)
        assert not why and replayed == "identical", (name, why, replayed)
    program = Program(seed, name, False, mark)
    record(native, program)
    return *paths, native.tape_about(native.tape_take())["calls"], program


def wrong(name, found, before, program):
    """Why that outcome of `finitude diff --json` is not the truth of the pair; empty where it is."""
    truth = PAIRS[name][1]
    there = found["divergence"]
    lone = [(side, call["op"]) for part in found["unaligned"] for side in ("only_a", "only_b") for call in part[side]]
    for side in ("only_a", "only_b"):
        for op in getattr(truth, side):
            if (side, op) not in lone:
                return f"{op} is not reported as {side}"
    if truth.kind == "quiet":
        return "" if there is None else f"a divergence: {there['kind']} at {there['at']}"
    if there is None:
        return f"no divergence; {found['verdict']}"
    if there["kind"] != truth.kind:
        return f"kind {there['kind']} at {there['at']}"
    at = there["at"].get("a") or there["at"]["b"]
    if truth.op and at["op"] != truth.op:
        return f"at {at['op']}, call {at['index']}"
    if at["index"] < before if truth.anywhere else at["index"] != before + truth.behind:
        return f"at call {at['index']} ({at['op']}), not {before + truth.behind}"
    listed = {(a["arg"], float(a["a"]), float(a["b"])) for a in there.get("arguments", []) if a["a"] and a["b"]}
    for arg, x, y in truth.arguments:
        if not any(arg == t[0] and abs(t[1] - x) <= 1e-6 * abs(x) and abs(t[2] - y) <= 1e-6 * abs(y) for t in listed):
            return f"arguments {there.get('arguments')}"
    if truth.kind == "input":
        expected = truth.name.format(site=program.site)
        if there["input"].get("name", "") != expected:
            return f"the input {there['input']}"
        if truth.rows and there["distance"].get("rows") != [getattr(program, row) for row in truth.rows]:
            return f"rows {there['distance'].get('rows')}"
    return ""


# A run that stays healthy against one whose last step is bad, both with --level trace: the trace of its last whole step
# against that of the bad one. BAD is where the two differ, in the last step alone.
STEPS = """
import torch, torch.nn as nn, torch.nn.functional as F

def train(bad):
    torch.manual_seed({seed})
    widths = {widths}
    layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(widths, widths[1:])])
    norm, head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 4)
    model = nn.ModuleDict({{"layers": layers, "norm": norm, "head": head}})
    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
    data, labels = torch.randn(24, widths[0]), torch.randint(0, 4, (24,))
    if bad and "{where}" == "data":
        data[{row} + 16] = float("nan")
    for step in range(3):
        x, y = data[step * 8 : step * 8 + 8], labels[step * 8 : step * 8 + 8]
        now = bad and step == 2
        optimizer.zero_grad()
        for layer in layers:
            x = {act}(layer(x))
        x = norm(x)
        x = x * (1e20 if now and "{where}" == "scale" else 0.5)
        p = head(x).softmax(-1)
        if now and "{where}" == "mask":
            p = p * 0.0
        loss = F.nll_loss(torch.log(p), y)
        if "{where}" == "mean":
            loss = loss / (0.0 if now else 8.0)
        loss.backward()
        optimizer.step()
        print(float(loss.detach()))

train({bad})
"""
TRACED = {  # kind, operator, argument with both values
    "mask": ("operators", "aten::mul", None),
    "scale": ("argument", "aten::mul", ("other", 0.5, 1e20)),
    "mean": ("argument", "aten::div", ("other", 8.0, 0.0)),
    "data": ("input", "aten::addmm", None),
}


def steps(where, seed, bad):
    draw = random.Random(seed)
    words = {
        "widths": [draw.choice([5, 8, 12]) for _ in range(draw.randrange(2, 5))],
        "row": draw.randrange(8),
        "act": draw.choice(["torch.tanh", "torch.relu", "F.gelu"]),
        "optimizer": draw.choice(["SGD", "AdamW"]),
    }
    return STEPS.format(seed=seed, where=where, bad=bad, **words)


def wrong_of_traces(where, found):
    """Why that outcome is not the truth of that pair; empty where it is."""
    kind, op, argument = TRACED[where]
    there = found["divergence"]
    if there is None or there["kind"] != kind:
        return f"{found['verdict']}, {there and there['kind']}"
    at = there["at"].get("b") or there["at"]["a"]
    if at["op"] != op:
        return f"at {at['op']}"
    listed = [(a["arg"], float(a["a"]), float(a["b"])) for a in there.get("arguments", []) if a["a"] and a["b"]]
    if argument and argument not in listed:
        return f"arguments {there.get('arguments')}"
    return "" if kind != "input" or there["source"] == "data" else f"the input {there['input']}"
