"""Pairs of small trainings, seeded: in half of them one thing differs, in the others only rounding does."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import torch
from torch import nn
from torch.nn import functional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH, ROWS = 32, 16


class Mixed(nn.Module):
    """A projection whose sums are made in one order or another."""

    def __init__(self, how: str):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.how = how

    def forward(self, x):
        if self.how == "halves":
            half = WIDTH // 2
            return x[:, half:] @ self.weight[half:] + x[:, :half] @ self.weight[:half]
        if self.how == "float64":
            return (x.double() @ self.weight.double()).to(x.dtype)
        if self.how == "fault":
            y = x @ self.weight
            return torch.where(torch.arange(len(y))[:, None] == 3, y * 1.5, y)
        return x @ self.weight


class Block(nn.Module):
    def __init__(self, made: Made, at: int):
        super().__init__()
        is_site = at == made.site
        change = made.change if is_site else ""
        self.change = change
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-2 if change == "eps" else 1e-5)
        slope = 0.3 if change == "slope" else 0.1
        self.act = nn.GELU() if change == "activation" else nn.LeakyReLU(slope)
        self.drop = nn.Dropout(0.5 if change == "p" else 0.1)
        self.mixed = Mixed(change if change in ("halves", "float64", "fault") else "")
        self.extra = nn.Tanh()
        if change == "evaluation":
            self.drop.eval()

    def forward(self, x):
        y = self.linear(x)
        if self.change != "missing":
            y = self.norm(y)
        if self.change == "inserted":
            y = self.extra(y)
        if self.change == "constant":
            y = y * 1.25
        y = self.act(y)
        if self.change == "draw":
            torch.rand(3)
        y = self.mixed(self.drop(y))
        return x + y if self.change != "residual" else y


class Renamed(nn.Module):
    """The same layers under another name."""

    def __init__(self, made: Made):
        super().__init__()
        self.layers = nn.ModuleList(Block(made, at) for at in range(made.blocks))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Net(nn.Module):
    def __init__(self, made: Made):
        super().__init__()
        self.blocks = nn.ModuleList(Block(made, at) for at in range(made.blocks))
        self.head = nn.Linear(WIDTH, 1)
        self.made = made

    def forward(self, x):
        seen = x
        for block in self.blocks:
            x = block(x)
        return self.head(seen if self.made.change == "wiring" else x)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


@dataclasses.dataclass
class Made:
    """One training. site: the block that the change is in."""

    seed: int
    change: str = ""
    blocks: int = 3
    site: int = 1
    step: int = 0  # that is dumped


@dataclasses.dataclass
class Pair:
    change: str
    seed: int
    kind: str  # of the divergence; empty: none
    where: str = ""  # the record that is named, `{site}` in it is the block
    step: int = 0
    check: Callable[[dict], bool] = lambda document: True

    def sides(self) -> tuple[Made, Made]:
        draw = random.Random(self.seed)
        blocks = draw.randint(2, 4)
        site = draw.randrange(blocks)
        return tuple(Made(self.seed, change, blocks, site, self.step) for change in ("", self.change))

    def is_right(self, document: dict) -> bool:
        first = document["divergence"]
        if not self.kind or first is None:
            return not self.kind and first is None
        name = first["a"]["name"].replace("Net.", "", 1)
        where = self.where.format(site=self.sides()[0].site)
        return first["kind"] == self.kind and name == where and self.check(document)


def _says(key):
    return lambda document: any(key in one["key"] for one in document["about"])


def _alone(name):
    def check(document):
        sides = [side for one in document["divergence"]["alone"] for side in one.values()]
        return any(side["name"].endswith(name) for side in sides)

    return check


CHANGES = [
    ("eps", "settings", "blocks.{site}.norm"),
    ("slope", "settings", "blocks.{site}.act"),
    ("activation", "settings", "blocks.{site}.act"),
    ("p", "settings", "blocks.{site}.drop"),
    ("evaluation", "settings", "blocks.{site}.drop"),
    ("draw", "random", "blocks.{site}.drop"),
    ("weight", "parameter", "blocks.{site}.linear"),
    ("weight, wrapped", "parameter", "blocks.{site}.linear"),
    ("weight, renamed", "parameter", "blocks.{site}.linear"),
    ("missing", "calls", "blocks.{site}.act", _alone(".norm")),
    ("inserted", "calls", "blocks.{site}.act", _alone(".extra")),
    ("constant", "between", "blocks.{site}.act"),
    ("residual", "between", "blocks.{site}"),
    ("wiring", "between", "head"),
    ("fault", "module", "blocks.{site}.mixed"),
    ("data row", "data", "blocks.0.linear"),
    ("data", "data", "blocks.0.linear"),
    ("loss", "gradient", "head"),
    ("clip", "gradient", "blocks.0.linear.weight.grad"),
    ("rate", "parameter", "blocks.0.linear", _says("lr")),
    ("decay", "parameter", "blocks.0.linear", _says("weight_decay")),
]
NOISE = ("threads", "halves", "float64", "autocast", "no mkldnn", "whole in float64", "foreach", "optimizer by loop")
LATER = ("rate", "decay", "foreach", "optimizer by loop")  # show at step 1


def seeded(change: str, number: int) -> int:
    return 1000 * (1 + number) + sum(map(ord, change))


def changed(seeds: int) -> Iterator[Pair]:
    for change, kind, where, *check in CHANGES:
        for number in range(seeds):
            yield Pair(change, seeded(change, number), kind, where, int(change in LATER), *check)


def noisy(seeds: int) -> Iterator[Pair]:
    for change in NOISE:
        for number in range(seeds):
            yield Pair(change, seeded(change, number), "", "", int(change in LATER or number % 2 == 1))


@contextlib.contextmanager
def surroundings(change: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if change == "threads":
            threads = torch.get_num_threads()
            torch.set_num_threads(1 if threads > 1 else 2)
            stack.callback(torch.set_num_threads, threads)
        if change == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if change == "no mkldnn":
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


def model_of(made: Made) -> nn.Module:
    torch.manual_seed(made.seed)
    net = Renamed(made) if made.change.endswith("renamed") else Net(made)
    if made.change.startswith("weight"):
        linear = list(net.children())[0][made.site].linear
        with torch.no_grad():
            linear.weight[2, 3] += 0.5
    if made.change == "whole in float64":
        net.double()
    return Wrapper(net) if made.change.endswith("wrapped") else net


def optimizer_of(made: Made, model: nn.Module) -> torch.optim.Optimizer:
    rate = 0.02 if made.change == "rate" else 0.01
    decay = 0.5 if made.change == "decay" else 0.01
    loops = {"foreach": True, "optimizer by loop": False}.get(made.change)
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, foreach=loops)


def train(made: Made, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """To the end of the step that is dumped."""
    for step in range(made.step + 1):
        draw = torch.Generator().manual_seed(made.seed + step + (77 if made.change == "data" else 0))
        x, target = torch.randn(ROWS, WIDTH, generator=draw), torch.randn(ROWS, 1, generator=draw)
        if made.change == "data row":
            x[5] = 0.5
        if made.change == "whole in float64":
            x, target = x.double(), target.double()
        torch.manual_seed(made.seed + step)
        with surroundings(made.change):
            loss = functional.mse_loss(model(x), target.to(x.dtype), reduction="mean")
        optimizer.zero_grad()
        (loss * 1.5 if made.change == "loss" else loss).backward()
        if made.change == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
