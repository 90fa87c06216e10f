"""What a program carries from one step into the next: hidden states, counters of its objects, functions that hold tensors."""

import pytest

import helpers

# Truncated backpropagation through time: what one window leaves behind is read by the next, and nothing else keeps it.
CARRIED = """
import torch
torch.manual_seed(0)
rnn, head = torch.nn.LSTM(3, 8, batch_first=True), torch.nn.Linear(8, 1)
weights = [*rnn.parameters(), *head.parameters()]
opt = torch.optim.Adam(weights, 1e-2)
rows = torch.rand(4, 60, 3)
rows[2, 30:40] = BAD
state = None
for k in range(0, 60, 10):
    if state is not None:
        state = tuple(s.detach() for s in state)
    out, state = rnn(rows[:, k:k + 10], state)
    target = rows[:, k:k + 10].sum((1, 2)).log()  # birth
    loss = (head(out[:, -1])[:, 0] - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(k, loss.item(), float(state[0].sum()), float(head.weight.sum()))
"""
IN_A_FUNCTION = CARRIED.replace("state = None\n", "def main():\n  state = None\n", 1)


def _indented(text):
    head, loop = text.split("for k in range", 1)
    return head + "".join("  " + line + "\n" for line in ("for k in range" + loop).splitlines()) + "main()\n"


@pytest.mark.fast
@pytest.mark.parametrize("text", [CARRIED, _indented(IN_A_FUNCTION)], ids=["module", "function"])
def test_a_program_that_goes_on_finds_the_state_that_it_left(tmp_path, text):
    text = text.replace("BAD", "0")
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0, got.told()
    alarm = got.the_alarm()
    assert alarm["step"] == 3 and alarm["rerun"] == "persistent" and alarm["rerun_verified"], got.told()
    assert "# birth" in text.splitlines()[alarm["births"][0]["line"]], alarm["births"][0]
    # The same losses as where the program itself leaves that step out.
    own = text.replace("loss.backward()", "loss.backward() if k != 30 else None").replace("opt.step()", "opt.step() if k != 30 else None")
    helpers.write_script(tmp_path, own, "own.py")
    assert got.out == helpers.plain_forked(tmp_path, "own.py").out
