"""With several optimizers a bad loss belongs to the first step of one that owns a gradient of it; others answer for their own."""

from helpers import training

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


def test_a_bad_loss_alarms_at_the_optimizer_that_owns_its_gradients(tmp_path):
    alarm = training(tmp_path, two("if i == 2: two = two * NAN")).the_alarm()
    assert (alarm["step"], alarm["optimizer"], alarm["sink"]["kind"]) == (2, "Adam", "loss")


def test_the_optimizer_that_does_not_own_it_steps_and_says_nothing(tmp_path):
    got = training(tmp_path, two("if i == 2: two = two * NAN"), "--on-alarm", "skip", "--level", "trace")
    assert (got.code, got.out) == (0, "ended True\n"), got.told()
    assert got.the_alarm()["optimizer"] == "Adam" and got.watched["steps"] == 12


def test_a_loss_shared_by_both_alarms_once_as_a_loss_and_for_gradients_at_the_other(tmp_path):
    steps = "(one + two).backward(); first.step(); second.step()"
    got = training(tmp_path, two("if i == 2: one = one * NAN", steps), "--on-alarm", "skip", "--level", "trace")
    found = [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms]
    # d(one + NaN)/d(head) is finite: the second optimizer has nothing bad of its own.
    assert found == [(2, "SGD", "loss")], got.told()


def test_the_other_optimizer_is_stopped_for_its_own_bad_gradients(tmp_path):
    steps = "((one + two) * (NAN if i == 2 else 1.0)).backward(); first.step(); second.step()"
    got = training(tmp_path, two("pass", steps), "--on-alarm", "skip", "--level", "trace")
    found = [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms]
    assert found == [(2, "SGD", "loss"), (2, "Adam", "gradient")], got.told()
    assert got.out == "ended True\n"


def test_the_second_step_of_an_alternating_pair_is_not_blamed_for_the_loss_of_the_first(tmp_path):
    # As in adversarial training: the loss of one passes through the parameters of the other, which drops those gradients.
    got = training(tmp_path, two("pass", """
    (head(model(x)[:, :1].repeat(1, 4)).mean() * (NAN if i == 3 else 1.0)).backward()
    second.step()
    first.zero_grad(); loss_of(x).backward(); first.step()
    """.strip()), "--on-alarm", "skip", "--level", "trace")
    found = [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in got.alarms]
    assert found == [(3, "Adam", "loss")], got.told()
    assert got.out == "ended True\n"


def test_two_healthy_optimizers_are_silent(tmp_path):
    got = training(tmp_path, two("pass"))
    got.assert_silent()
    assert got.watched["steps"] == 12


def test_two_groups_and_a_group_added_later_are_all_watched(tmp_path):
    got = training(tmp_path, """
        head = nn.Linear(3, 1)
        opt = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}], lr=0.1)
        for i, x in enumerate(batches):
            if i == 2: opt.add_param_group({"params": head.parameters()})
            opt.zero_grad()
            loss = head(model(x)).pow(2).mean()
            if i == 4: loss = loss + 0 * (head.bias - head.bias.detach()).sqrt().sum()
            loss.backward()
            opt.step()
        """)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["sink"]["name"]) == (4, "gradient", "bias"), got.told()


def test_a_second_optimizer_made_later_over_the_same_parameters_is_watched(tmp_path):
    got = training(tmp_path, """
        for phase in range(2):
            opt = torch.optim.Adam(model.parameters(), lr=0.01)
            for i, x in enumerate(batches):
                opt.zero_grad()
                loss = loss_of(x)
                if phase == 1 and i == 2: loss = loss * NAN
                loss.backward()
                opt.step()
        """)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["optimizer"], got.watched["steps"]) == (2, "Adam", 9), got.told()
