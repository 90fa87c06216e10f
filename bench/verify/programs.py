"""Small trainings, the same in each run of the process, and one bit that changes in their third step."""

import random
import tempfile

import torch
from torch import nn

STEP = 2
KINDS = ("output", "operand", "weight", "gradient", "state", "update")
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
    "adam of a loop": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


def train(name, optimizer_name, steps, verify, at=None):
    """The advisories and the counts. at: called as at(moment, model, optimizer) in step STEP, at "begin",
    "backward", "end" and "applied"."""
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
            now("applied", model, optimizer)
        counts = _native.verified_counts()
        return watch.report()["advisories"], counts


def came_to(name, optimizer_name, at=None):
    """A training, and what its step STEP comes to: gradients, parameters and optimizer state as bytes."""
    parts = []

    def look(moment, model, optimizer):
        if at is not None:
            at(moment, model, optimizer)
        if moment in ("end", "applied"):
            of_state = [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
            tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *of_state]
            parts.extend(t.detach().numpy().tobytes() for t in tensors)

    advisories, _ = train(name, optimizer_name, STEP + 1, "every=1", look)
    return advisories, parts


def _asked(update, decide):
    """decide: of the operators of the step, or of its optimizer's."""
    from finitude import _native

    phases = ("optimizer",) if update else ("forward", "backward")
    step = STEP + update  # the step is counted before the optimizer's operators run
    _native.inject_start(lambda op, phase, *rest: decide(op, *rest) if phase in phases else None, step, step)


def operations(name, optimizer_name, update=False):
    """The places of a step that an output can be changed at: (number, operators, results with memory of their own).
    operators: the one that computes it, and those that call it."""
    from finitude import _native

    places = []

    def decide(op, node, key, makes, numels, run):
        places.append(([op, *_native.inject_inside()], [i for i, n in enumerate(numels) if n], list(numels)))

    _asked(update, decide)
    try:
        _, parts = came_to(name, optimizer_name)
    finally:
        _native.inject_stop()
    return parts, [(i, *place) for i, place in enumerate(places) if place[1]]


def flip_output(name, optimizer_name, update, known, one):
    """What is said, and the operators that may be named for it: the tape has the outermost one that computes. No
    operators: the step comes to the same bits all the same, as where the output is not read."""
    from finitude import _native

    parts, places = known
    number, operators, results, numels = one.choice(places)
    which = one.choice(results)
    answer = which, one.randrange(numels[which]), None, one.randrange(BITS)
    count = iter(range(10**9))
    _asked(update, lambda *_: answer if next(count) == number else None)
    try:
        advisories, got = came_to(name, optimizer_name)
    finally:
        _native.inject_stop()
    return advisories, () if got == parts else tuple(f"{op} " for op in operators)


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
    one = random.Random(seed)
    known = {}
    table = {kind: [0, 0, 0, 0] for kind in KINDS}
    missed = []
    for number in range(count):
        kind, name = KINDS[number % len(KINDS)], one.choice(list(MODELS))
        optimizer = one.choice(list(OPTIMIZERS))
        update = kind == "update"
        try:
            if kind == "output" or update:
                if (name, optimizer, update) not in known:
                    known[name, optimizer, update] = operations(name, optimizer, update)
                advisories, expected = flip_output(name, optimizer, update, known[name, optimizer, update], one)
            else:
                advisories, expected = flip_memory(name, optimizer, kind, one)
        except ArithmeticError:  # an alarm, or a step count that became 0 in the optimizer
            table[kind][3] += 1
            continue
        if not expected:
            continue  # the layer did not run by its own call, or nothing came of the flip
        texts = [a["text"] for a in advisories if a["kind"] == "corrupted-step"]
        table[kind][0] += 1
        table[kind][1] += bool(texts)
        right = any(text.startswith(expected) for text in texts)
        table[kind][2] += right
        if not right:
            missed.append((name, kind, expected, texts))
    return table, missed
