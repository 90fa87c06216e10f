"""Small trainings, the same in each run of the process, and one bit that changes in their third step."""

import random
import tempfile

import torch
from torch import nn

STEP = 2
KINDS = ("output", "operand", "weight", "gradient", "state")
BITS = 32  # of a float32


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h = self.norm(x.reshape(8, 4, 16))
        return self.out(h + self.mix(h, h, h)[0])


def mlp():
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def convolution():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)
    )


MODELS = {"mlp": mlp, "convolution": convolution, "attention": Attention}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def train(name, optimizer_name, steps, verify, at=None):
    """The advisories and the counts. at: called as at(moment, model, optimizer) in step STEP, at "begin", "operand",
    "backward" and "end"."""
    import finitude
    from finitude import _native

    torch.manual_seed(5)
    model = MODELS[name]()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    with (
        tempfile.TemporaryDirectory() as folder,
        finitude.watch(model, optimizer, runs=folder, verify=verify, quiet=True) as watch,
    ):
        for step in range(steps):
            now = at if at is not None and step == STEP else (lambda *_: None)
            x = torch.randn(8, 64)
            optimizer.zero_grad()
            now("begin", model, optimizer)
            loss = (model(x) - 1).pow(2).mean()
            now("backward", model, optimizer)
            loss.backward()
            now("end", model, optimizer)
            optimizer.step()
        counts = _native.verified_counts()
        return watch.report()["advisories"], counts


def operations(name, optimizer_name):
    """The places of a step that an output can be changed at: (number, operator, results with memory of their own)."""
    from finitude import _native

    places = []

    def decide(op, phase, node, key, makes, numels, run):
        if phase in ("forward", "backward"):
            places.append((op, [i for i, n in enumerate(numels) if n], list(numels)))

    _native.inject_start(decide, STEP, STEP)
    try:
        train(name, optimizer_name, STEP + 1, "every=1")
    finally:
        _native.inject_stop()
    return [(i, *place) for i, place in enumerate(places) if place[1]]


def flip_output(name, optimizer_name, place, one):
    """What is said, and the operator that was changed."""
    from finitude import _native

    number, op, results, numels = place
    which = one.choice(results)
    answer = which, one.randrange(numels[which]), None, one.randrange(BITS)
    count = iter(range(10**9))

    def decide(op, phase, *_):
        return answer if phase in ("forward", "backward") and next(count) == number else None

    _native.inject_start(decide, STEP, STEP)
    try:
        advisories, _ = train(name, optimizer_name, STEP + 1, "every=1")
    finally:
        _native.inject_stop()
    return advisories, f"{op} "


def flip_memory(name, optimizer_name, kind, one):
    """What is said, and what has to be named: a parameter, or the call that made an operand."""
    from finitude import _native

    named = []
    hooks = []

    def flip(tensor, expected):
        named.append(expected)
        assert _native.inject_flip(tensor, one.randrange(tensor.numel()), one.randrange(BITS))

    def operand(model):
        layers = [
            m for m in model.modules() if not list(m.children()) and not isinstance(m, (nn.Flatten, nn.Unflatten))
        ]
        layer = one.choice(layers[1:])

        def before(module, inputs):
            if not hooks[0][1]:
                hooks[0][1] = True
                flip(inputs[0], "the result of ")

        hooks.append([layer.register_forward_pre_hook(before), False])

    def at(moment, model, optimizer):
        if kind == "operand" and moment == "begin":
            operand(model)
        elif kind == "weight" and moment == "backward":
            key, p = one.choice(list(model.named_parameters()))
            flip(p, f"the parameter {key} ")
        elif kind == "gradient" and moment == "end":
            key, p = one.choice([(k, p) for k, p in model.named_parameters() if p.grad is not None])
            flip(p.grad, f"the gradient of {key} ")
        elif kind == "state" and moment == "end":
            key, p = one.choice([(k, p) for k, p in model.named_parameters() if p.numel() > 1])
            word = one.choice([w for w, v in optimizer.state[p].items() if v.numel() > 1])
            flip(optimizer.state[p][word], f"{word} in the optimizer state of {key} ")

    advisories, _ = train(name, optimizer_name, STEP + 1, "every=1", at)
    return advisories, named[0] if named else ""


def tried(count, seed):
    """For each kind of place: how many bits changed that left the step finite, were found, and were named; how many
    made it NaN or Inf, which is an alarm without a second computation; and what was not named."""
    import finitude

    one = random.Random(seed)
    places = {name: operations(name, "adamw") for name in MODELS}
    table = {kind: [0, 0, 0, 0] for kind in KINDS}
    missed = []
    for number in range(count):
        kind, name = KINDS[number % len(KINDS)], one.choice(list(MODELS))
        optimizer = one.choice(list(OPTIMIZERS)) if kind != "output" else "adamw"
        try:
            if kind == "output":
                advisories, expected = flip_output(name, optimizer, one.choice(places[name]), one)
            else:
                advisories, expected = flip_memory(name, optimizer, kind, one)
        except finitude.NonFiniteError:
            table[kind][3] += 1
            continue
        if not expected:
            continue  # the layer did not run by its own call
        texts = [a["text"] for a in advisories if a["kind"] == "corrupted-step"]
        table[kind][0] += 1
        table[kind][1] += bool(texts)
        right = any(text.startswith(expected) for text in texts)
        table[kind][2] += right
        if not right:
            missed.append((name, kind, expected, texts))
    return table, missed
