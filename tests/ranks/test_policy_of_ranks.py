"""finitude ctl reaches the ranks one after another: those in one alarm do the same about it."""

import itertools
import types

import pytest
import torch.distributed as dist
from test_agreement import write

from finitude.base import compat, config, control
from finitude.session import control as in_run
from helpers import LIMIT
from process_support import warm_launcher, watched_ranks


@pytest.fixture
def both(tmp_path, monkeypatch):
    """The controls of two ranks, of which the first has been asked to change the policy and the second has not yet."""
    store = dist.HashStore()
    monkeypatch.setattr(compat, "group_store", lambda: store)
    monkeypatch.setattr(in_run.ranks, "several", lambda: True)
    made = []
    for rank in (0, 1):
        folder = tmp_path / f"rank-{rank}"
        folder.mkdir()
        settings = config.Config(on_alarm="skip")
        made.append((in_run.Control(settings, types.SimpleNamespace(directory=str(folder))), settings))
    control.write(str(tmp_path / "rank-0"), {"on-alarm": "warn", "warnings": "off"})
    return types.SimpleNamespace(ranks=made, store=store)


def policies(both, order, step):
    for rank in order:
        both.ranks[rank][0].new_policy(0, step)
    return [settings.on_alarm for _, settings in both.ranks]


@pytest.mark.parametrize("first, expected", [(0, "warn"), (1, "skip")])
def test_the_first_in_an_alarm_decides(both, first, expected):
    assert policies(both, (first, 1 - first), 5) == [expected, expected]


def test_each_alarm_is_decided_once(both, tmp_path):
    found = [policies(both, order, step) for step, order in enumerate(itertools.permutations((0, 1)))]
    assert found == [["warn", "warn"], ["skip", "skip"]]
    control.write(str(tmp_path / "rank-1"), {"on-alarm": "warn"})
    assert policies(both, (1, 0), 2) == ["warn", "warn"]


@pytest.mark.parametrize("held", [b"[]", b"{", b'{"on-alarm": "x"}', b'{"seed": "1"}', None])
def test_without_the_others_the_policy_stays(both, monkeypatch, capsys, held):
    """A hostile or absent store: what holds is what all ranks held before."""
    if held is None:
        monkeypatch.setattr(compat, "group_store", Gone)
    else:
        both.store.set("finitude/policy/0/5", held.decode())
    assert policies(both, (0, 1), 5) == ["skip", "skip"]
    assert capsys.readouterr().err.count("is not obeyed at this alarm") == 1  # by the rank that was asked something


class Gone:
    def compare_set(self, *_):
        raise RuntimeError("Connection reset by peer")


# Both ranks are in the alarm of step 5.
ASK = """
    if step == 4 and rank == 0:
        from finitude.base import control
        from finitude.session import native_callbacks
        control.write(native_callbacks.session.report.run_directory(), {"on-alarm": "skip"})
    if step == 5: next(model.parameters()).grad.view(-1)[0] = float("nan")
"""


@pytest.mark.slow
def test_ranks_of_one_step_do_the_same(tmp_path):
    """Only the file of rank 0 is written by then. Both apply the step, or both skip it."""
    write(tmp_path, "no_sync", ASK.strip())
    got = watched_ranks(tmp_path, "--on-alarm", "warn", *warm_launcher(tmp_path), "train.py", limit=LIMIT)
    assert got.code in (0, 1) and not got.watched.get("failures"), got.text()
    assert {a["rank"] for a in got.alarms if a["step"] == 5} == {0, 1}, got.text()
    for step in (5, 6, 7):  # an applied one leaves bad weights
        assert len({a["action"] for a in got.alarms if a["step"] == step}) <= 1, got.text()
