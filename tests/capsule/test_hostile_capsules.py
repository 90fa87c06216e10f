"""Every reader in Python of a capsule from elsewhere, on thousands of damaged ones: see test_hostile_input.py."""

import contextlib
import copy
import json

import pytest
import torch
import torch._dynamo  # noqa: F401  optimizers pull it in, which is no part of a try

import helpers
import mutations
from finitude import _native
from finitude.capsules import placing, start_check
from finitude.cli import trial
from finitude.report import capsule_alarm
from hostile_files import ABOUT, CAPSULE, harmless, put

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("word", ["report", pytest.param("dump", marks=pytest.mark.thorough)])
def test_descriptions_of_capsules(tmp_path, word):
    folder = tmp_path / "step-000002"
    put(folder / "statistics.bin", (CAPSULE / "statistics.bin").read_bytes())

    def one(draw):
        put(folder / "capsule.json", mutations.text_of(mutations.damaged(ABOUT, draw), draw))
        code, out, err = helpers.offline(word, folder)
        assert code in (0, 3) and (out or err), (code, out, err)

    mutations.tries(3000, 2, one)
    assert sorted(mutations.tree(tmp_path)) == ["step-000002", "step-000002/capsule.json", "step-000002/statistics.bin"]


def test_statistics_of_capsules(tmp_path):
    """As the folder holds them, with a capsule.json that says what lies there."""
    folder, sound = tmp_path / "step-000002", (CAPSULE / "statistics.bin").read_bytes()
    for file in CAPSULE.iterdir():
        put(folder / file.name, file.read_bytes())

    def one(draw):
        put(folder / "statistics.bin", mutations.damaged_bytes(sound, draw))
        code, lines, why = helpers.offline("dump", folder)
        assert (code, bool(lines), bool(why)) in ((0, True, False), (3, False, True))

    mutations.tries(5000, 3, one)


def program():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def start_of_batches():
    """The golden capsule holds no batch; one in every form that a batch can have."""
    start = copy.deepcopy(ABOUT["start"])
    start["tensors"].update(
        {"batch.0.x": {"dtype": "float32", "shape": [2, 3]}, "batch.0.y": {"dtype": "int64", "shape": [2]}}
    )
    tree = {
        "dict": [
            ["x", {"tensor": "batch.0.x"}],
            ["more", {"list": [{"array": "batch.0.y"}, {"value": 3}, {"other": "set"}]}],
        ]
    }
    start["batches"] = [{"loader": 0, "ahead": 0, "samples": None, "generators": start["generators"], "batch": tree}]
    return start


def test_what_is_put_into_a_program(tmp_path):
    """The start of a capsule.json, with the bytes of tensors that fit or do not: it is refused as a whole, or nothing
    but a Misfit is raised."""
    why, _, data, _ = _native.capsule_read(str(CAPSULE))
    assert not why
    data = {**data, "batch.0.x": bytes(24), "batch.0.y": bytes(16)}
    sound, counted = start_of_batches(), {"refused": 0, "misfit": 0, "fits": 0}
    template = {"x": torch.ones(2, 3), "more": [torch.ones(2, dtype=torch.int64).numpy(), 1, {2}]}
    assert start_check.is_sound(sound)

    def one(draw):
        start = mutations.damaged(sound, draw)
        with contextlib.suppress(ValueError, RecursionError):
            start = json.loads(mutations.text_of(start, draw))
        if not start_check.is_sound(start):
            counted["refused"] += 1
            return
        bytes_of = dict(data)
        if draw.random() < 0.3:
            name = draw.choice(sorted(bytes_of))
            bytes_of[name] = mutations.damaged_bytes(bytes_of[name], draw)
        model, optimizer = program()
        parameters = dict(model.named_parameters())
        try:
            held = placing.Held(start, bytes_of)
            (mine,) = (o for o in start["optimizers"] if o["failed"])
            why = placing.misfits(held, mine["parameters"], parameters)
            if not why:
                placing.put_tensors(held, mine["parameters"], parameters)
                placing.put_state(held, mine, optimizer, parameters)
                placing.rate(mine, optimizer)
            for batch in start["batches"]:
                placing.fill(held, batch["batch"], copy.copy(template))
                held.generators(batch["generators"])
            held.generators(start["generators"])
            torch.tensor(0.0).fill_(start["scaler"]["scale"] if start["scaler"] else 0.0)
        except placing.Misfit as e:
            assert str(e)
            counted["misfit"] += 1
            return
        counted["misfit" if why else "fits"] += 1

    mutations.tries(4000, 6, one)
    assert min(counted.values()) * mutations.SHARE > 50, counted


def test_what_a_trial_shows_of_a_capsule(tmp_path):
    def one(draw):
        put(
            tmp_path / "capsule.json",
            mutations.text_of(mutations.damaged({**ABOUT, "start": start_of_batches()}, draw), draw),
        )
        about, why = trial._about(str(tmp_path))
        assert (about is None) == bool(why)
        if about is not None and not trial._why_not(about):
            assert trial._ways(about)
            for verdict in ("fixed", "not fixed"):
                assert harmless(
                    trial._text(
                        about, {"verdict": verdict, "text": "", "way": "step", "same_birth": False, "birth": None}
                    )
                )

    mutations.tries(4000, 7, one)


def test_alarm_completion_updates_or_preserves_damaged_capsule(tmp_path):
    alarm = {**ABOUT["alarm"], "capsule": str(tmp_path)}

    def one(draw):
        before = mutations.text_of(mutations.damaged(ABOUT, draw), draw)
        put(tmp_path / "capsule.json", before)
        capsule_alarm.complete(alarm, draw.random() < 0.5)
        assert mutations.tree(tmp_path) == ["capsule.json"]
        now = (tmp_path / "capsule.json").read_bytes()
        assert now == before or json.loads(now)["alarm"]["step"] == alarm["step"]

    mutations.tries(3000, 10, one)
