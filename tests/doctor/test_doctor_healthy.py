"""Healthy trainings get no warning: every negative case of the zoo, and ordinary loops of the table of
compatibility."""

import pathlib

import pytest

from doctor_support import doctor, found

ROOT = pathlib.Path(__file__).parents[2]
NEGATIVE = {p.parent.name: p for p in sorted((ROOT / "zoo/negative").glob("*/train.py"))}
# Nothing in it is ever NaN, which is what the zoo asks; it does not learn either: its loss grows a thousandfold in
# every step.
DIVERGES = "I18_saturated_features"
PROGRAMS = (
    "accumulation",
    "averaged_model",
    "checkpointing",
    "closure_step",
    "compiled",
    "gan_alternating",
    "lbfgs",
    "loop_in_thread",
    "meta_learning",
    "mixed_precision",
    "own_optimizer",
    "persistent_workers",
    "ppo",
    "trainer_class",
)


@pytest.mark.parametrize("name", [n for n in NEGATIVE if n != DIVERGES])
def test_no_warning_on_the_negative_case(tmp_path, name):
    code, document, err = doctor(tmp_path, str(NEGATIVE[name]))
    assert not found(document, verdicts=("bad", "warn")), document["findings"]
    assert (code, document["trouble"], document["not_looked_at"]) == (0, [], []), err


def test_loss_growing_without_bound_is_not_healthy(tmp_path):
    code, document, _ = doctor(tmp_path, str(NEGATIVE[DIVERGES]))
    assert code == 1 and [f["check"] for f in found(document, verdicts=("bad", "warn"))] == ["P12"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_warning_on_the_first_steps_of(tmp_path, name):
    """Their faults come later, in the statement marked `# birth`."""
    code, document, err = doctor(tmp_path, str(ROOT / f"tests/compatibility/programs/{name}.py"))
    assert not found(document, verdicts=("bad", "warn")), document["findings"]
    assert (code, document["trouble"], document["not_looked_at"]) == (0, [], []), err
