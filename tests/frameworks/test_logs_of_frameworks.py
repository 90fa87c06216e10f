"""`finitude doctor` on what a training leaves without us: Lightning's CSVLogger, the Trainer's state and SummaryWriter."""

import json

import pytest
from framework_runs import needs, run

import helpers

pytestmark = needs("lightning", "transformers", "tensorboard")
BAD = 7  # a batch, and a step, counted from 0
# (program, its configuration, where the log is, the quantity and its first bad step as the logger counts)
LOGS = {
    "CSVLogger": ("lightning_fit.py", "own_logging", "lightning_logs", "loss_step", BAD),
    "trainer_state.json": ("trainer_fit.py", "evaluating", "out", "grad_norm", BAD + 1),
    "SummaryWriter": ("trainer_fit.py", "evaluating", "out/runs", "train/grad_norm", BAD + 1),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains once, with a bad batch or without."""
    known = {}

    def folder(program, configuration, bad):
        if (program, bad) not in known:
            made = known[program, bad] = tmp_path_factory.mktemp("logs")
            assert run(made, program, configuration, *bad).code == 0
        return known[program, bad] / configuration

    return folder


@pytest.mark.parametrize("log", LOGS)
def test_the_first_bad_step_is_named(trained, log):
    program, configuration, place, quantity, step = LOGS[log]
    done = helpers.finitude(trained(program, configuration, (str(BAD),)), "doctor", "--json", place)
    found = json.loads(done.out)["findings"]
    assert done.code == 1 and found[0]["text"].startswith(f"{quantity} is NaN at step {step}"), done.text()
    if program == "trainer_fit.py":
        assert "P23" in [one["check"] for one in found], done.text()  # it logs a NaN loss as 0


@pytest.mark.parametrize("log", LOGS)
def test_a_healthy_log_has_no_finding(trained, log):
    program, configuration, place, *_ = LOGS[log]
    done = helpers.finitude(trained(program, configuration, ()), "doctor", "--json", place)
    answer = json.loads(done.out)
    assert (done.code, answer["findings"], answer["looked_at"]) == (0, [], ["log"]), done.text()
