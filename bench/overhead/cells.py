"""What is measured, for how long. `full` takes at most 25 minutes on 2 cores, `quick` at most 3."""

import dataclasses

MODEL_TEXT = {
    "tiny": "MLP 8-8-2, b8",
    "mlp": "MLP 784-512-512-10, b64",
    "lstm": "LSTM 2x256, T=32, b16",
    "gpt-toy": "GPT 4x128, T=64, b8",
    "resnet18": "ResNet-18 CIFAR, b16",
    "gpt-small": "GPT 6x384, T=256, b4",
}
OPTIMIZER_TEXT = {
    "adamw": "AdamW foreach",
    "adamw-fused": "AdamW fused",
    "sgd": "SGD momentum",
    "adamw-clip": "AdamW foreach, clipped",
}
# Rows of a batch that pass through each weight: how much work there is per byte of gradient (of a convolution, the
# positions of its output; the least of the layers that hold most weights).
ROWS = {"tiny": 8, "mlp": 64, "lstm": 512, "gpt-toy": 512, "resnet18": 256, "gpt-small": 1024}

SECONDS = {"tiny": 16, "mlp": 10, "lstm": 14, "gpt-toy": 16, "resnet18": 24, "gpt-small": 36}
COMPARE_SECONDS = {"mlp": 16, "lstm": 18, "gpt-toy": 24, "resnet18": 50, "gpt-small": 80}
MODELS = ("mlp", "lstm", "gpt-toy", "resnet18", "gpt-small")
OPTIMIZERS = ("adamw", "adamw-fused", "sgd", "adamw-clip")
START_SECONDS = 7  # import, model, first steps, last words of a process
FULL_SECONDS, QUICK_SECONDS = 23.5 * 60, 165


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str
    spec: tuple  # of (key, value): what the worker gets
    seconds: float

    def worker_spec(self, scale, **more):
        return {**dict(self.spec), "seconds": self.seconds * scale, **more}


def _cell(name, seconds, **spec):
    return Cell(name, tuple(sorted({"threads": 1, **spec}.items())), seconds)


def _own(kind, optimizer, threads):
    return _cell(
        f"own-{kind}-{optimizer}-{threads}",
        SECONDS[kind],
        measure="overhead",
        kind=kind,
        optimizer=optimizer,
        threads=threads,
    )


def _compare(kind, threads, share=1.0):
    return _cell(
        f"compare-{kind}-{threads}",
        COMPARE_SECONDS[kind] * share,
        measure="compare",
        kind=kind,
        optimizer="adamw",
        threads=threads,
    )


def _tiny(name, loader):
    return _cell(
        f"tiny-{name}", SECONDS["tiny"], measure="overhead", kind="tiny", optimizer="adamw", loader=loader, least=20
    )


def _half(kind):
    return _cell(f"half-{kind}", 8, measure="overhead", kind=kind, optimizer="adamw", half=True)


def _undo(kind):
    return _cell(f"undo-{kind}", 8, measure="overhead", kind=kind, optimizer="adamw", undo_mb=256)


def _gan(name, joint):
    return _cell(f"gan-{name}", 16, measure="overhead", kind="gan", optimizer="adamw", joint=joint)


def _memory(kind):
    return [
        _cell(f"memory-{kind}-{state}", 3, measure="memory", kind=kind, optimizer="adamw", watched=state == "on")
        for state in ("off", "on")
    ]


def _alone(kind, repeats):
    return [
        _cell(f"alone-msprobe-{kind}-{i}", 8, measure="alone", contender="msprobe", kind=kind, optimizer="adamw")
        for i in range(repeats)
    ]


def full():
    cells = [_own(kind, optimizer, threads) for kind in MODELS for optimizer in OPTIMIZERS for threads in (1, 2)]
    cells += [_tiny("list", False), _tiny("loader", True)]
    cells += [_compare(kind, 1) for kind in MODELS] + [_compare(kind, 2, 0.4) for kind in ("mlp", "lstm", "gpt-toy")]
    cells += [_half("mlp"), _half("gpt-toy"), _undo("mlp"), _undo("gpt-toy")]
    cells += [_gan("alternating", False), _gan("joint", True)]
    cells += [c for kind in MODELS for c in _memory(kind)]
    return cells + _alone("mlp", 2) + _alone("gpt-toy", 2)


def quick():
    cells = [
        _own("mlp", "adamw", 1),
        _own("mlp", "adamw-fused", 1),
        _own("lstm", "adamw", 1),
        _own("gpt-toy", "adamw", 1),
        _own("gpt-toy", "adamw-clip", 1),
        _own("resnet18", "adamw", 1),
    ]
    cells += [_tiny("list", False), _tiny("loader", True), _compare("mlp", 1), _compare("gpt-toy", 1)]
    return cells + [_half("mlp"), _undo("mlp")] + _memory("gpt-toy")


def scale_for(cells, seconds):
    """What the cells' own seconds are multiplied with, so that all of it fits."""
    return max(0.05, min(1.0, (seconds - START_SECONDS * len(cells)) / sum(c.seconds for c in cells)))
