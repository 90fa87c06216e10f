"""Under `skip` a later bad step that cannot be run again in place is explained when the program has ended: it may have
failed for another reason."""

import pytest

import helpers

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
data = [torch.rand(4, 3) + 0.5 for _ in range(9)]
data[3][2] = 0
data[5][1, 0] = float("nan")
data[7][2] = 0
class Source:
    def __init__(self):
        self.i = 0
    def __iter__(self):
        return self
    def __next__(self):
        if self.i == len(data):
            raise StopIteration
        self.i += 1
        return data[self.i - 1]
for i, x in enumerate(Source()):
    opt.zero_grad()
    loss = (1 / x.sum(1) * model(x)[:, 0]).pow(2).mean()
    loss.backward()
    opt.step()
    print(i, bool(model.weight.isfinite().all()))
"""


def reported(run):
    return [(a["step"], a["rerun_by"], a["cause"]["class"]) for a in run.alarms]


@pytest.mark.slow
def test_first_remaining_step_is_explained_at_program_end(tmp_path):
    run = helpers.run(tmp_path, PROGRAM, "--on-alarm", "skip")
    assert run.code == 0 and run.out == "".join(f"{i} True\n" for i in range(9)), run.text()
    assert reported(run) == [(3, "restart", "division-by-zero"), (5, "restart", "bad-data"), (7, "none", "unknown")], (
        run.text()
    )
    second = run.alarms[1]
    assert (
        second["rerun_verified"]
        and second["capsule"]
        and run.err.index("step 7: loss is Inf") < run.err.index("step 5 skipped")
    ), run.text()


@pytest.mark.slow
@pytest.mark.parametrize("policy, end", [("skip", "raise RuntimeError('of the program')"), ("warn", "")])
def test_abnormal_end_or_applied_steps_prevent_deferred_restart(tmp_path, policy, end):
    run = helpers.run(tmp_path, PROGRAM + end, "--on-alarm", policy)
    assert [by for _, by, _ in reported(run)][1:] == ["none"] * (len(run.alarms) - 1), run.text()
