"""What ranks of other machines send of a bad step, and what the report of a machine takes of it."""

import json
import types

import pytest
import torch.distributed as dist

from finitude import _native
from finitude.report import merge
from finitude.rerun import rank_births


def alarm(rank, cause, text="", op="aten::log", phase="forward"):
    birth = {"op": op, "phase": phase, "file": "train.py", "line": 7, "inputs": [], "outputs": [], "micro_batch": 0}
    return {
        "step": 3,
        "rank": rank,
        "sink": {"kind": "loss", "name": "loss"},
        "weights": "clean",
        "rerun": "persistent",
        "rerun_by": "rewind",
        "births": [birth] * 3,
        "cause": {"class": cause, "confidence": "proven", "text": text, "experiments": []},
        "fix": None,
        "capsule": "/somewhere",
        "text": "loss is NaN",
        "optimizer_ordinal": 0,
    }


@pytest.fixture
def share(monkeypatch):
    """A function that shares the alarm of a rank of four, two on each machine; what the report of its machine has."""
    store = dist.HashStore()
    monkeypatch.setattr(rank_births, "LIMIT_S", 0.2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def one(own, level="gate", redact=0, goes=True):
        monkeypatch.setattr(rank_births.ranks, "world", lambda: (own["rank"], 4))
        monkeypatch.setenv("LOCAL_RANK", str(own["rank"] % 2))
        config = types.SimpleNamespace(level=level, redact=redact)
        report = types.SimpleNamespace(config=config, elsewhere=[])
        vote = types.SimpleNamespace(
            store=store, key="step", rank=own["rank"], size=4, parted="", is_joined=lambda: goes or level == "trace"
        )
        rank_births.share(vote, own, report)
        return merge.elsewhere(report.elsewhere, [own])

    one.store = store
    return one


def shown(alarms):
    own = {"outcome": "alarm", "reason": "x", "watched": {**merge.nothing_watched(), "ranks": 4}, "advisories": []}
    document = {**json.loads(_native.report_head("{}")), **own, "alarms": alarms}
    assert _native.report_problem(json.dumps(document)) == ""
    return " ".join(_native.render_terminal(json.dumps(document), False, 80, False).split())


def test_the_first_rank_of_a_machine_reports_what_others_made(share):
    assert share(alarm(3, "log-of-zero", "a zero")) == []
    assert share(alarm(1, "log-of-zero")) == []
    received = alarm(0, "other-rank", "another rank was first", "c10d::allreduce_", "communication")
    received["action"] = "the step was skipped"
    (found,) = share(received)
    assert (found["rank"], found["action"], found["capsule"], len(found["births"])) == (3, received["action"], None, 1)
    assert f"(rank 3 of 4, on {found['host']})" in shown([found]), found
    assert received["cause"]["text"] == "the value came from one of ranks 1, 3"
    assert [one["rank"] for one in share(alarm(2, "log-of-zero"))] == [1]  # of the other machine, not of its own


def test_a_host_has_no_name_where_values_are_redacted(share):
    share(alarm(2, "log-of-zero"), redact=1)
    (found,) = share(alarm(0, "other-rank"))
    assert found["host"] == "" and "(rank 2 of 4)" in shown([found])


def test_recorded_steps_are_shared_and_refused_ones_are_not(share):
    share(alarm(2, "log-of-zero"), goes=False)
    assert share(alarm(0, "other-rank"), goes=False) == []
    share(alarm(2, "log-of-zero"), level="trace", goes=False)
    assert [one["rank"] for one in share(alarm(0, "other-rank"), level="trace", goes=False)] == [2]


def test_an_alarm_is_shortened_to_what_a_store_should_hold(share):
    long = alarm(2, "log-of-zero", "a zero")
    long["cause"]["experiments"] = [{"name": "n" * 200, "outcome": "o", "confirms": True}] * 400
    long["path"] = [{"op": "aten::add", "file": "f", "line": 1, "module": ""}] * 10
    share(long)
    assert len(share.store.get("step/births/1")) <= rank_births.MOST_BYTES
    (found,) = share(alarm(0, "other-rank"))
    assert found["cause"]["text"] == "a zero" and found["births"][0]["line"] == 7, found


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[" * 30_000,
        "[" * 900 + "]" * 900,
        "null",
        json.dumps({"rank": 2, "host": ""}),
        json.dumps({**alarm(2, "x"), "host": "", "births": []}),
        json.dumps({**alarm(2, "x"), "host": "", "cause": None}),
        json.dumps({**alarm(2, "x"), "host": "", "step": "3"}),
        json.dumps({"pad": "x" * rank_births.MOST_BYTES}),
    ],
)
def test_what_no_report_may_hold_is_not_read(share, text):
    share.store.set("step/births/1", text)
    share.store.add("step/births/made", 1)
    received = alarm(0, "other-rank", "another rank was first")
    assert share(received) == [] and received["cause"]["text"] == "another rank was first"


def test_a_report_holds_a_limited_number(share):
    found = []
    own = [alarm(0, "other-rank") for _ in range(6)]
    for one in own:
        merge.add_elsewhere(found, one, [alarm(2, "x")] * 16)
    assert len(merge.elsewhere(found, own)) == merge.MOST_ELSEWHERE and len(merge.elsewhere(found, own[:1])) == 16
    assert merge.elsewhere(found, [own[0]] * merge.MAX_ALARMS) == []


@pytest.mark.parametrize("redact", [0, 1])
def test_what_is_sent_says_no_more_than_the_report_here(share, redact):
    own = alarm(2, "log-of-zero")
    own["births"][0]["source"] = 'loss = log(p, password="hunter2")'
    share(own, redact=redact)
    sent = share.store.get("step/births/1").decode()
    assert "hunter2" not in sent and ("log(p" in sent) == (not redact), sent
