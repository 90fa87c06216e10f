"""With several optimizers a bad loss belongs to the first step of one that owns a gradient of it; others answer for
their own."""

import pytest

from helpers import plain, training

TWO = """
head = nn.Linear(4, 3)
first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(head.parameters(), lr=0.1)
for i, x in enumerate(batches):
    for o in (first, second): o.zero_grad()
    one, two = loss_of(x), (head(x) - 1).pow(2).mean()
    {fault}
    {steps}
print("ended", finite())
"""

SEPARATE = """
    one.backward(); two.backward()
    first.step(); second.step()
"""


def two(fault, steps=SEPARATE.strip()):
    return TWO.format(fault=fault, steps=steps)


def test_bad_loss_alarms_at_optimizer_owning_its_gradients(tmp_path):
    alarm = training(tmp_path, two("if i == 2: two = two * NAN")).the_alarm()
    assert (alarm["step"], alarm["optimizer"], alarm["sink"]["kind"]) == (2, "Adam", "loss")


def test_optimizer_not_owning_the_loss_steps_silently(tmp_path):
    got = training(tmp_path, two("if i == 2: two = two * NAN"), "--on-alarm", "skip", "--level", "trace")
    assert (got.code, got.out) == (0, "ended True\n"), got.text()
    assert got.the_alarm()["optimizer"] == "Adam" and got.watched["steps"] == 12


def test_shared_bad_loss_with_finite_gradients_alarms_once(tmp_path):
    steps = "(one + two).backward(); first.step(); second.step()"
    got = training(tmp_path, two("if i == 2: one = one * NAN", steps), "--on-alarm", "skip", "--level", "trace")
    found = [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms]
    # d(one + NaN)/d(head) is finite: the second optimizer has nothing bad of its own.
    assert found == [(2, "SGD", "loss")], got.text()


def test_other_optimizer_stops_for_its_own_bad_gradients(tmp_path):
    steps = "((one + two) * (NAN if i == 2 else 1.0)).backward(); first.step(); second.step()"
    got = training(tmp_path, two("pass", steps), "--on-alarm", "skip", "--level", "trace")
    found = [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms]
    assert found == [(2, "SGD", "loss"), (2, "Adam", "gradient")], got.text()
    assert got.out == "ended True\n"


def test_second_alternating_step_is_not_blamed_for_first(tmp_path):
    # As in adversarial training: the loss of one passes through the parameters of the other, which drops those
    # gradients.
    got = training(
        tmp_path,
        two(
            "pass",
            """
    (head(model(x)[:, :1].repeat(1, 4)).mean() * (NAN if i == 3 else 1.0)).backward()
    second.step()
    first.zero_grad(); loss_of(x).backward(); first.step()
    """.strip(),
        ),
        "--on-alarm",
        "skip",
        "--level",
        "trace",
    )
    found = [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms]
    assert found == [(3, "Adam", "loss")], got.text()
    assert got.out == "ended True\n"


def test_two_healthy_optimizers_are_silent(tmp_path):
    got = training(tmp_path, two("pass"))
    got.assert_silent()
    assert got.watched["steps"] == 12


def test_all_groups_including_later_added_ones_are_watched(tmp_path):
    got = training(
        tmp_path,
        """
        head = nn.Linear(3, 1)
        opt = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}], lr=0.1)
        for i, x in enumerate(batches):
            if i == 2: opt.add_param_group({"params": head.parameters()})
            opt.zero_grad()
            loss = head(model(x)).pow(2).mean()
            if i == 4: loss = loss + 0 * (head.bias - head.bias.detach()).sqrt().sum()
            loss.backward()
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["sink"]["name"]) == (4, "gradient", "head.bias"), got.text()


def test_later_optimizer_over_same_parameters_is_watched(tmp_path):
    got = training(
        tmp_path,
        """
        for phase in range(2):
            opt = torch.optim.Adam(model.parameters(), lr=0.01)
            for i, x in enumerate(batches):
                opt.zero_grad()
                loss = loss_of(x)
                if phase == 1 and i == 2: loss = loss * NAN
                loss.backward()
                opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["optimizer"], got.watched["steps"]) == (2, "Adam", 9), got.text()


JOINT = """
head = nn.Linear(4, 3)
seen, late, freed = [], [], []
first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(head.parameters(), lr=0.1)
plans = [torch.optim.lr_scheduler.StepLR(o, 1, 0.9) for o in (first, second)]
for i, x in enumerate(batches):
    one, two = loss_of(x), (head(x) - 1).pow(2).mean()
    for o in (first, second): o.zero_grad()
    {body}
    for plan in plans: plan.step()
print("ended", finite(), all(bool(p.isfinite().all()) for p in head.parameters()), seen, late, [p.last_epoch for p in plans],
      all(abs(o.param_groups[0]["lr"] - 0.1 * 0.9 ** p.last_epoch) < 1e-12 for o, p in zip((first, second), plans)))
"""
ALL = list(range(6))


def joint(folder, body, *options):
    return training(folder, JOINT.format(body=body.strip().replace("\n", "\n    ")), *options)


def test_one_backward_is_explained_once_without_side_effects(tmp_path):
    got = joint(
        tmp_path,
        """
if i == 2: one = one / (one - one)
(one + two * one.detach()).backward()
seen.append(i); first.step(); late.append(i); second.step()
""",
        "--on-alarm",
        "skip",
    )
    assert (got.code, got.out) == (0, f"ended True True {ALL} {ALL} [5, 5] True\n"), got.text()
    own, other = got.alarms
    assert [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in (own, other)] == [
        (2, "SGD", "loss"),
        (2, "Adam", "gradient"),
    ]
    assert own["rerun_verified"] and own["births"][0]["source"] == "if i == 2: one = one / (one - one)"
    assert (other["births"], other["cause"], other["rerun"]) == (own["births"], own["cause"], "persistent"), other[
        "rerun_text"
    ]
    assert "the alarm of SGD at step 2 reports" in other["rerun_text"] and not got.advisories()
    assert got.err.count("born in forward") == 1


def test_two_reasons_in_one_iteration_are_both_found(tmp_path):
    """The second run of the one goes over the step of the other, which was left out and is again."""
    got = joint(
        tmp_path,
        """
if i == 3: one = one / (one - one)
if i == 3: two = two + 0 * (head.weight - head.weight.detach()).sqrt().sum()
one.backward(); two.backward()
first.step(); seen.append(i); second.step(); late.append(i)
""",
        "--on-alarm",
        "skip",
    )
    assert (got.code, got.out) == (0, f"ended True True {ALL} {ALL} [5, 5] True\n"), got.text()
    assert [(a["step"], a["optimizer"], a["rerun"], a["rerun_verified"]) for a in got.alarms] == [
        (3, "SGD", "persistent", True),
        (3, "Adam", "persistent", True),
    ], [a["rerun_text"] for a in got.alarms]
    own, other = (a["births"][0] for a in got.alarms)
    assert (own["op"], other["phase"], other["forward"]["op"]) == ("aten::div", "backward", "aten::sqrt"), got.text()
    assert not got.advisories()


def test_rerun_preserves_gradients_accumulated_for_another_optimizer(tmp_path):
    """It steps every third time, and backward adds to its gradients once more in the second run."""
    body = """
if i != 5: second.zero_grad = lambda: None
if i == 4: one = one + 0 * (model.weight - model.weight.detach()).sqrt().sum()
one.backward(); two.backward()
first.step(); seen.append(f"{head.weight.grad.double().sum().item():.17g}")
if i % 3 == 2: second.step(); torch.optim.Optimizer.zero_grad(second)
"""
    got = joint(tmp_path, body, "--on-alarm", "warn")
    assert got.alarms[0]["rerun_verified"], got.text()
    assert got.out == plain(tmp_path, "train.py").out


@pytest.mark.parametrize("bad", [2, 3], ids=["before the other step", "after it"])
def test_zeroing_gradients_of_another_model_is_not_handling(tmp_path, bad):
    """As in adversarial training: the one whose gradients they are not zeroes them, before the bad step and after
    it."""
    got = joint(
        tmp_path,
        """
loss = (two + head(x + model(x)[:, :1]).mean()) * (NAN if i == BAD else 1.0)
loss.backward()
second.zero_grad()
first.step() if i % 2 else None
second.zero_grad()
(head(x) - 1).pow(2).mean().backward()
second.step()
first.step() if not i % 2 else None
seen.append(i)
""".replace("BAD", str(bad)),
        "--on-alarm",
        "skip",
    )
    assert [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms] == [(bad, "SGD", "loss")], got.text()
    assert not got.advisories() and got.watched["handled_by_script"] == 0, got.text()
    assert got.out == f"ended True True {ALL} [] [5, 6] True\n"


def test_shared_parameters_after_a_veto_are_nobodys_handling(tmp_path):
    got = training(
        tmp_path,
        """
        heads = [nn.Linear(3, 1), nn.Linear(3, 1)]
        opts = [torch.optim.SGD([*model.parameters(), *h.parameters()], lr=0.05) for h in heads]
        for i, x in enumerate(batches):
            for k, (h, o) in enumerate(zip(heads, opts)):
                o.zero_grad()
                loss = h(torch.tanh(model(x))).pow(2).mean()
                if (i, k) == (3, 1): loss = loss / (loss - loss)
                loss.backward()
                o.step()
        print("ended", finite())
        """,
        "--on-alarm",
        "skip",
    )
    assert (got.code, got.out, got.the_alarm()["step"]) == (0, "ended True\n", 3), got.text()
    assert got.the_alarm()["rerun_verified"] and not got.advisories() and got.watched["handled_by_script"] == 0, (
        got.text()
    )


def test_bad_loss_alarms_first_owner_despite_finite_gradients(tmp_path):
    got = joint(
        tmp_path,
        """
if i == 2: one = one * NAN
(one + two).backward()
second.step(); first.step()
""",
        "--on-alarm",
        "skip",
    )
    assert [(a["step"], a["optimizer"], a["sink"]["kind"], a["harmless"]) for a in got.alarms] == [
        (2, "Adam", "loss", True),
        (2, "SGD", "gradient", False),
    ], got.text()
    assert all(a["births"][0]["source"] == "if i == 2: one = one * NAN" for a in got.alarms) and not got.advisories()


ANOTHER_WAY = """
import os
if i == 3: one = one / (one - one)
one.backward()
if i == 0 or os.path.isdir("been here"): two.backward(); second.step(); late.append(i)
if i == 3: os.makedirs("been here", exist_ok=True)
first.step(); seen.append(i)
"""


def test_rerun_reaching_an_untaken_step_uses_restart(tmp_path):
    """What it reads from outside has changed meanwhile, so it goes another way: in a copy of the process, which is not
    gone on from."""
    got = joint(tmp_path, ANOTHER_WAY, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (got.code, got.out) == (0, f"ended True True {ALL} [0, 4, 5] [5, 6] True\n"), got.text()
    assert (alarm["step"], alarm["optimizer"], alarm["rerun_by"], alarm["rerun_verified"]) == (
        3,
        "SGD",
        "restart",
        True,
    ), got.text()
    assert "the second run would not come back to this step" in alarm["rerun_text"], alarm["rerun_text"]


def test_rerun_that_reaches_an_untaken_step_is_reported(tmp_path):
    """The same where no copy can try it, as a thread of the program's own would be missing in it. The program goes on
    from there."""
    thread = (
        "\nimport threading\nif i == 0: threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()"
    )
    got = joint(tmp_path, thread + ANOTHER_WAY, "--on-alarm", "skip")
    assert (got.code, got.out) == (0, f"ended True True {ALL} [0, 3, 4, 5] [5, 6] True\n"), got.text()
    own, again = got.alarms
    assert (own["step"], own["optimizer"], own["rerun_by"]) == (3, "SGD", "restart"), got.text()
    assert "another optimizer stepped first" in own["rerun_text"]
    assert own["rerun_text"].endswith("the program continues at a step of Adam that the first run did not take"), own[
        "rerun_text"
    ]
    assert (again["step"], again["births"]) == (3, own["births"]) and "the alarm of SGD at step 3 reports" in again[
        "rerun_text"
    ]
    assert not got.advisories()


def test_alarms_of_one_backward_name_the_explained_one(tmp_path):
    got = training(
        tmp_path,
        """
        model = nn.Sequential(model, nn.Linear(3, 2))
        opts = [torch.optim.Adam([p], lr=0.01) for p in model.parameters()]
        for i, x in enumerate(batches):
            distance = ((model(x) - model(x).detach() + (i != 3)) ** 2).sum(1).sqrt()
            for o in opts: o.zero_grad()
            distance.mean().backward()
            for o in opts: o.step()
        """,
        "--on-alarm",
        "skip",
    )
    first, *others = got.alarms
    assert (first["step"], first["births"][0]["forward"]["op"], [a["rerun"] for a in others]) == (
        3,
        "aten::sqrt",
        ["not-run"] * 3,
    ), got.text()
    assert {a["cause"]["text"] for a in others} == {
        "not run again; the same backward left bad gradients of Adam, whose alarm at step 3 (0.weight) is explained"
    }, others


@pytest.mark.parametrize("cleared", ["opt_d.zero_grad(); opt_g.zero_grad()", "opt_d.zero_grad()", "opt_g.zero_grad()"])
def test_one_backward_bad_at_two_optimizers_counts_once(tmp_path, cleared):
    got = training(
        tmp_path,
        f"""
        d = nn.Linear(3, 1)
        opt_g, opt_d = opt, torch.optim.SGD(d.parameters(), lr=0.1)
        for i, x in enumerate(batches * 2):
            {cleared}
            (d(model(x).detach()) - 1).pow(2).mean().backward()
            if "opt_d" in "{cleared}": opt_d.step()
            opt_g.zero_grad()
            fake = model(x)
            slope = (fake - fake.detach()).pow(2).sum().sqrt() if i in (4, 7) else 0.0
            (d(fake).mean() + slope * d.weight.sum()).backward()
            if any(not p.grad.isfinite().all() for p in model.parameters()):
                opt_d.zero_grad() if "opt_d" not in "{cleared}" else None
                continue
            opt_g.step()
            opt_d.zero_grad() if "opt_d" not in "{cleared}" else None
        """,
        "--on-alarm",
        "raise",
    )
    assert (got.code, got.watched["handled_by_script"]) == (0, 2), got.text()
