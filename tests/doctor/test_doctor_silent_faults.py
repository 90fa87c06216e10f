"""Trainings with a silent fault, every value of which is finite, and their healthy neighbours (bench/silent)."""

import pytest
from bench.silent import healthy, programs
from bench.silent.healthy import CHECKS, healthy_files

from doctor_support import doctor, examine, found

STEPS = ("--steps", "20")
# One for each check; the sweep has all.
SAMPLE = {
    "P24": "detach between encoder and head",
    "P25": "layers in a plain list",
    "P26": "a schedule that is zero throughout",
    "P27": "gradients are never cleared",
    "P28": "in evaluation mode after a validation",
    "P29": "labels in another order than inputs",
    "P30": "each epoch is seeded with the same number",
    "P31": "an embedding that is tied by a copy",
}
AT_ONCE = {  # with the two steps that the doctor looks at unasked
    "P24": "the model is made again after its optimizer",
    "P25": "the head is replaced after the optimizer",
    "P27": "the gradients of another model are cleared",
    "P28": "never in training mode",
    "P29": "softmax before cross-entropy",
}
NEIGHBOURS = (
    "a backbone frozen on purpose",
    "two networks against each other",
    "batch normalisation frozen by train()",
    "a low-rank adapter",
    "pseudo labels in evaluation mode",
    "gradients accumulated over micro-batches",
)


def said(document, check):
    return found(document, check, verdicts=("bad", "warn"))


@pytest.mark.parametrize("check", SAMPLE)
def test_silent_fault_is_reported_by(tmp_path, check):
    expected, text = programs.BUGS[SAMPLE[check]]
    assert expected == check
    _, document, err = examine(tmp_path, text, *STEPS)
    assert said(document, check) and not document["trouble"], (document["findings"], document["trouble"], err)
    assert all(f["advice"] and f["line"] for f in said(document, check))


@pytest.mark.parametrize("check", AT_ONCE)
def test_two_steps_are_enough_for(tmp_path, check):
    _, document, _ = examine(tmp_path, programs.BUGS[AT_ONCE[check]][1])
    assert said(document, check), document["findings"]


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_silent_on_its_healthy_neighbour(tmp_path, name):
    _, document, _ = examine(tmp_path, healthy.PROGRAMS[name], *STEPS)
    assert not found(document, verdicts=("bad", "warn")) and not document["trouble"], document


# Detached from some step on, with gradients that are set to None; and softmax over the wrong dimension.
ENDED = "def loss_of(i):\n    loss = F.cross_entropy(model(x), y)\n    return loss.detach().requires_grad_() if i > 2 else loss\n"
BATCH = "def loss_of(i):\n    return F.nll_loss(torch.log_softmax(model(x), dim=DIM), y)\n"


@pytest.mark.parametrize(
    ("check", "loss", "word"),
    [
        ("P24", ENDED, "no gradient in the last 17 steps, and did before"),
        ("P24", ENDED.replace("i > 2", "i in (3, 4)"), ""),
        ("P29", BATCH.replace("DIM", "0"), "a softmax over the rows of the batch"),
        ("P29", BATCH.replace("DIM", "1"), ""),
    ],
)
def test_gradients_that_end_and_a_softmax_over_the_batch(tmp_path, check, loss, word):
    text = programs.text_of("model = Net()\n" + programs.SGD, loss + programs.LOOP)
    _, document, _ = examine(tmp_path, text, *STEPS)
    found = [one["text"] for one in said(document, check)]
    assert len(found) == bool(word) and all(word in one for one in found), document["findings"]


def test_the_operation_that_cuts_is_named(tmp_path):
    text = programs.BUGS["the encoder runs under no_grad"][1]
    _, document, _ = examine(tmp_path, text)
    (one,) = said(document, "P24")
    assert "encoder.weight" in one["text"] and one["evidence"]["operation"] == "aten::addmm"
    assert one["line"] == next(
        i for i, line in enumerate(text.strip().splitlines(), 1) if "h = model.encoder(x)" in line
    )


@pytest.mark.thorough
def test_at_least_twenty_seven_of_thirty_found(tmp_path):
    assert len(programs.BUGS) == 30
    missed = []
    for name, (check, text) in programs.BUGS.items():
        _, document, _ = examine(tmp_path, text, *STEPS)
        if not said(document, check):
            missed.append(name)
    assert len(missed) <= 3, missed


@pytest.mark.thorough
def test_nothing_invented_on_healthy_trainings(tmp_path):
    invented = []
    for name, text in healthy.PROGRAMS.items():
        _, document, _ = examine(tmp_path, text, *STEPS)
        invented += [(name, f["text"]) for c in CHECKS for f in said(document, c)]
    for files in healthy_files().values():
        for file in files:
            _, document, _ = doctor(tmp_path, *STEPS, str(file))
            invented += [(str(file), f["text"]) for c in CHECKS for f in said(document or {"findings": []}, c)]
    assert not invented, invented
