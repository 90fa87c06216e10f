"""Logits of the loss and of attention are looked at in a few steps: their series, and the warnings of their growth."""

import pathlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import finitude
from finitude.store import reader


class Transformer(nn.Module):
    """One layer. fused: attention is one operator. factor: of the queries."""

    def __init__(self, fused):
        super().__init__()
        self.query, self.key, self.value, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.fused, self.factor, self.seen = fused, 1.0, []

    def forward(self, x):
        q, k, v = (p(x).view(2, 6, 2, 4).transpose(1, 2) for p in (self.query, self.key, self.value))
        q = q * self.factor
        scores = q @ k.transpose(-1, -2) / 2
        longest = q.norm(dim=-1).argmax(dim=-1)
        self.seen.append((scores.detach().abs().max().item(), longest, scores.detach()))
        mixed = F.scaled_dot_product_attention(q, k, v) if self.fused else torch.softmax(scores, -1) @ v
        return self.head(mixed.transpose(1, 2).reshape(2, 6, 8))


def trained(folder, fused, growth, steps):
    """(report, the series of the run, the layer). growth: of the logits, step by step."""
    torch.manual_seed(0)
    model = Transformer(fused)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    with finitude.watch(model, opt, runs=str(folder), warnings="logits,attention") as watch:
        for i in range(steps):
            model.factor = growth**i
            out = model(torch.randn(2, 6, 8)).flatten(0, 1) * growth**i
            opt.zero_grad()
            F.cross_entropy(out, torch.randint(8, (12,))).backward()
            opt.step()
        report = watch.report()
    with reader.Store(str(next(pathlib.Path(folder).glob("*/store.sqlite")))) as store:
        series = {s.quantity: store.points(s.id) for s in store.series() if s.parameter is None}
    return report, series, model


def looks(points):
    """The points that hold a look; several may be in one."""
    return [p for p in points if p.max is not None]


def test_growing_logits_are_warned_of(tmp_path):
    report, series, model = trained(tmp_path, True, 1.06, 260)
    assert [w["what"] for w in report["warnings"]] == ["logits", "attention"]
    for one in report["warnings"]:
        assert one["name"] == one["what"] and one["since"] < one["step"] == 257
        assert one["evidence"]["to"] > 100 > 25 > one["evidence"]["from"] and "softmax" in one["text"]
    # In fused attention those of the query of the largest norm of each head are computed.
    _, longest, scores = model.seen[257]
    of_longest = scores.gather(2, longest[..., None, None].expand(-1, -1, 1, 6)).abs().max().item()
    assert looks(series["attention_absmax"])[-1].last == pytest.approx(of_longest, rel=1e-5)


def test_a_few_steps_of_plain_attention_are_looked_at(tmp_path):
    _, series, model = trained(tmp_path, False, 1.0, 20)
    points = looks(series["attention_absmax"])
    seen = [points[0].first, points[-1].last]
    assert seen == pytest.approx([model.seen[i][0] for i in (4, 13)], rel=1e-5)


def test_a_healthy_transformer_is_silent(tmp_path):
    report, series, _ = trained(tmp_path, True, 1.0, 135)
    assert report["warnings"] == [] and series["logits_absmax"] and series["attention_absmax"]
