"""Two optimizers in one iteration: the window of one lies across the step of the other, which is undone and taken
again.

Joint and alternating adversarial loops, several critic steps, functions of their own, shared parameters. Each program
says at which step its data are bad; what it prints afterwards is compared with the same program leaving that step out
itself."""

import re
import sys
import textwrap

import pytest

import helpers

pytestmark = pytest.mark.slow

HEAD = """
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)
BAD, WHO, SKIPS = {bad}, {who!r}, {skips}
real = torch.randn(40, 8, 4)
G = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
opt_g = torch.optim.{kind}(G.parameters(), lr=1e-2)
opt_d = torch.optim.{kind}(D.parameters(), lr=1e-2)
sched_d = torch.optim.lr_scheduler.StepLR(opt_d, 2, 0.9)
seen = []


def bad(who):
    return i == BAD and WHO == who


def spread(x, who):
    return x / (0.0 * x.detach() if bad(who) else 1.0 + x.detach().abs().mean())


def loss_of_d(x, fake):
    return (D(spread(x, "D")) - 1).pow(2).mean() + D(fake.detach()).pow(2).mean()


def loss_of_g(fake):
    return (D(spread(fake, "G")) - 1).pow(2).mean()


def step(who, optimizer):
    if not (SKIPS and bad(who)):
        optimizer.step()
"""

TAIL = """
print(seen)
print([f"{p.double().sum().item():.15f}" for m in (G, D) for p in m.state_dict().values()])
print(sched_d.last_epoch, opt_d.param_groups[0]["lr"])
"""

LOOPS = {
    # The generator's forward lies before the discriminator's step, its backward behind it.
    "alternating": """
        for i in range(8):
            fake = G(torch.randn(8, 3))
            opt_d.zero_grad()
            loss_d = loss_of_d(real[i], fake)
            loss_d.backward()
            step("D", opt_d)
            opt_g.zero_grad()
            loss_g = loss_of_g(fake)
            loss_g.backward()
            step("G", opt_g)
            sched_d.step()
            seen.append(i)
        """,
    "joint": """
        for i in range(8):
            fake = G(torch.randn(8, 3))
            loss_d, loss_g = loss_of_d(real[i], fake), loss_of_g(fake)
            opt_d.zero_grad()
            opt_g.zero_grad()
            loss_g.backward(retain_graph=True)
            D.zero_grad()
            loss_d.backward()
            step("D", opt_d)
            step("G", opt_g)
            sched_d.step()
            seen.append(i)
        """,
    "three_critic_steps": """
        for i in range(8):
            for k in range(3):
                fake = G(torch.randn(8, 3))
                opt_d.zero_grad()
                loss_of_d(real[3 * i + k], fake).backward()
                step("D", opt_d)
            opt_g.zero_grad()
            loss_of_g(G(torch.randn(8, 3))).backward()
            step("G", opt_g)
            sched_d.step()
            seen.append(i)
        """,
    "functions": """
        def train_d(x):
            opt_d.zero_grad()
            with torch.no_grad():
                fake = G(torch.randn(8, 3))
            loss = loss_of_d(x, fake)
            loss.backward()
            step("D", opt_d)
            return loss.item()

        def train_g():
            opt_g.zero_grad()
            loss = loss_of_g(G(torch.randn(8, 3)))
            loss.backward()
            step("G", opt_g)
            return loss.item()

        loader = torch.utils.data.DataLoader(real, batch_size=None, shuffle=True)
        for i, x in enumerate(loader):
            train_d(x)
            train_g()
            sched_d.step()
            seen.append(i)
            if i == 7: break
        """,
}


def text_of(loop, who, bad=4, skips=False, kind="Adam"):
    return HEAD.format(bad=bad, who=who, skips=skips, kind=kind).lstrip() + textwrap.dedent(LOOPS[loop]) + TAIL


# How far back: to where the other optimizer's step returned, behind another call of the same function, which takes
# nothing back; or over that step.
BEHIND = "where another optimizer stepped last"
OVER = "undone and taken again"
WAYS = [
    ("alternating", "D", BEHIND),
    ("alternating", "G", OVER),
    ("joint", "D", BEHIND),
    ("joint", "G", OVER),
    ("three_critic_steps", "D", OVER),
    ("three_critic_steps", "G", OVER),
    ("functions", "D", OVER),
    ("functions", "G", OVER),
]


@pytest.mark.parametrize("loop, who, way", WAYS)
def test_step_behind_another_optimizers_step_reruns_in_place(tmp_path, loop, who, way):
    if way == BEHIND and sys.version_info < (3, 11):
        pytest.skip("this Python's frames are not made to go on elsewhere")
    got = helpers.run(tmp_path, text_of(loop, who), "--on-alarm", "skip", "--undo-mb", "8")
    alarm = got.alarms[0]
    assert (alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"]) == ("jump", "persistent", True), alarm[
        "rerun_text"
    ]
    assert way in alarm["rerun_text"]
    birth = alarm["births"][0]
    assert (birth["op"], birth["source"][:11]) == ("aten::div", "return x / "), birth
    assert alarm["weights"] == "clean"


@pytest.mark.parametrize(
    "loop, who, kind",
    [
        ("alternating", "G", "Adam"),
        ("alternating", "D", "SGD"),
        ("joint", "G", "AdamW"),
        ("functions", "G", "RMSprop"),
        ("three_critic_steps", "G", "Adam"),
    ],
)
def test_after_the_jump_nothing_has_been_done_twice(tmp_path, loop, who, kind):
    """Weights of both, running statistics, schedulers and lists: with `warn`, as without us."""
    text = text_of(loop, who, kind=kind)
    got = helpers.run(tmp_path, text, "--on-alarm", "warn", "--undo-mb", "8")
    in_place = (
        sys.version_info >= (3, 11) or dict(((loop, w), way) for loop, w, way in WAYS)[loop, who] == OVER
    )  # frames of 3.10 go on where they are
    assert got.alarms[0]["rerun_by"] == ("jump" if in_place else "restart"), got.alarms[0]["rerun_text"]
    assert got.out == helpers.plain(tmp_path, "train.py").out


SHARED = """
import torch
from torch import nn

torch.manual_seed(3)
body, one, two = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(6, 1)
opt_one = torch.optim.Adam([*body.parameters(), *one.parameters()], lr=0.05)
opt_two = torch.optim.SGD([*body.parameters(), *two.parameters()], lr=0.05, momentum=0.9)


def train(head, optimizer, x):
    optimizer.zero_grad()
    loss = (head(torch.tanh(body(x))).squeeze(1) / x.pow(2).sum(1) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()


for i in range(7):
    x = torch.randn(5, 4)
    train(one, opt_one, x)
    if i == 4: x[2] = 0
    train(two, opt_two, x)
print([p.tolist() for m in (body, one, two) for p in m.parameters()])
"""


def test_shared_parameters_are_restored_with_the_other_step(tmp_path):
    got = helpers.run(tmp_path, SHARED, "--on-alarm", "warn")
    alarm = got.alarms[0]
    # Both train in one function, so the nearest return is the same call with another optimizer.
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "jump", True), alarm["rerun_text"]
    assert alarm["births"][0]["op"] == "aten::div"
    assert got.out == helpers.plain(tmp_path, "train.py").out


def test_without_room_for_copies_the_report_says_so(tmp_path):
    wide = text_of("functions", "G").replace(
        "nn.Linear(4, 8), nn.Tanh()", "nn.Linear(4, 70000), nn.Linear(70000, 8), nn.Tanh()"
    )
    alarm = helpers.run(tmp_path, wide, "--undo-mb", "1").the_alarm()
    assert alarm["rerun_by"] == "restart" and "copies to go back to take" in alarm["rerun_text"], alarm["rerun_text"]


TIMED = """
import time, torch
from torch import nn

torch.manual_seed(5)
torch.set_num_threads(1)
one, two = (nn.Embedding({rows}, 8) for _ in range(2))
head = nn.Linear(8, 1)
opt_one = torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9)
opt_two = torch.optim.SGD([*two.parameters(), *head.parameters()], lr=0.01, momentum=0.9)


def train_one(x):
    opt_one.zero_grad()
    one(x).pow(2).mean().backward()
    opt_one.step()


def train_two(x, i):
    opt_two.zero_grad()
    loss = (head(two(x)) / (i != 40)).pow(2).mean()
    loss.backward()
    opt_two.step()


for i in range(42):
    x = torch.randint({rows}, (16,))
    time.sleep({sleep})
    train_one(x)
    train_two(x, i)
"""


def test_step_too_short_for_copies_reports_their_absence(tmp_path):
    """Of a momentum step over a table most is memory traffic, and a copy of table and momentum is more of it."""
    alarm = helpers.run(tmp_path, TIMED.format(rows=40_000, sleep=0)).the_alarm()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("restart", True), alarm["rerun_text"]
    assert re.search(
        r"SGD stepped meanwhile; copies to go back to would take \d+ % of the time; --undo-mb keeps them",
        alarm["rerun_text"],
    ), alarm["rerun_text"]


def test_undo_budget_makes_copies_regardless_of_their_cost(tmp_path):
    alarm = helpers.run(tmp_path, TIMED.format(rows=40_000, sleep=0), "--undo-mb", "64").the_alarm()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("jump", True), alarm["rerun_text"]


def test_long_enough_step_makes_copies_by_default(tmp_path):
    alarm = helpers.run(tmp_path, TIMED.format(rows=40, sleep=0.02)).the_alarm()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("jump", True), alarm["rerun_text"]


@pytest.mark.parametrize("megabytes, way", [(16, "jump"), (3, "restart")])
def test_copies_stay_within_the_memory_that_is_given(tmp_path, megabytes, way):
    """40,000 rows of 8 floats, as many of momentum and of gradient are 3.8 MB."""
    text = (
        TIMED.format(rows=40_000, sleep=0)
        .replace("opt_two = torch.optim.SGD", "opt_two = torch.optim.Adagrad")
        .replace("[*two.parameters(), *head.parameters()], lr=0.01, momentum=0.9", "[*head.parameters()], lr=0.01")
    )
    alarm = helpers.run(tmp_path, text, "--undo-mb", str(megabytes)).the_alarm()
    assert alarm["rerun_by"] == way, alarm["rerun_text"]
    assert way == "jump" or "copies to go back to take 4 MB; --undo-mb gives them room" in alarm["rerun_text"], alarm[
        "rerun_text"
    ]


def test_gradients_left_by_diverged_jump_are_not_handling(tmp_path):
    """The actor's backward adds to what the critic's left: no bad step of its own, and nothing that the script has
    dropped."""
    got = helpers.run(
        tmp_path,
        textwrap.dedent("""
        import numpy as np
        import torch
        from torch import nn
        torch.manual_seed(1)
        torch.set_num_threads(1)
        actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
        actor_opt, critic_opt = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
        alpha = nn.Parameter(torch.zeros(1))
        alpha_opt = torch.optim.Adam([alpha], 1e-3)
        filled = np.zeros(1, int)
        for i in range(8):
            filled += 1
            o = torch.rand(int(filled[0]) + 8, 4)[:8]       # a second run draws more
            with torch.no_grad(): a = actor(o)
            q = critic(torch.cat([o, a], 1))
            loss = (q - o.sum(1)).pow(2).mean() / (0.0 if i == 4 else 1.0)
            critic_opt.zero_grad(); loss.backward(); critic_opt.step()
            loss = -critic(torch.cat([o, actor(o)], 1)).mean()
            actor_opt.zero_grad(); loss.backward(); actor_opt.step()
            alpha_opt.zero_grad(); (alpha * o.mean()).sum().backward(); alpha_opt.step()
    """),
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert alarm["step"] == 4 and "jump did not reproduce" in alarm["rerun_text"], got.text()
    assert got.watched["handled_by_script"] == 0 and got.report["advisories"] == [], got.text()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python's frames are not made to go on elsewhere")
def test_detached_bad_value_before_other_step_is_traced(tmp_path):
    """Where the window begins before that step it is run again as a whole; where the step that computed it was left
    out, its alarm shows it."""
    text = HEAD.format(bad=4, who="A", skips=False, kind="SGD").lstrip() + textwrap.dedent("""
        alpha = nn.Parameter(torch.zeros(()))
        opt_a = torch.optim.Adam([alpha], lr=1e-2)


        def bad(who):
            return (i, who) in ((4, "A"), (6, "D"))


        def train(x, fake):
            share = spread(x, "A").mean()
            loss = loss_of_d(x, fake)
            opt_d.zero_grad()
            loss.backward()
            opt_d.step()
            wanted = -(alpha * (loss.detach() + share)).mean()
            opt_a.zero_grad()
            wanted.backward()
            opt_a.step()


        for i in range(8):
            train(real[i], real[i + 8])
        """)
    got = helpers.run(tmp_path, text, "--on-alarm", "skip", "--undo-mb", "8")
    alone, first, second = got.alarms
    assert (alone["step"], alone["rerun_by"], alone["rerun_verified"]) == (4, "jump", True), alone["rerun_text"]
    assert OVER in alone["rerun_text"] and "what it read was bad before that" in alone["rerun_text"], alone[
        "rerun_text"
    ]
    assert (first["step"], second["step"], second["rerun_by"]) == (6, 6, "jump") and second["births"] == first[
        "births"
    ], got.text()
    assert second["rerun_text"].endswith(
        "loss is of the step of SGD that was skipped, as the alarm at step 6 reports"
    ), second["rerun_text"]
    for alarm in got.alarms:
        assert (alarm["births"][0]["op"], alarm["births"][0]["source"][:11]) == ("aten::div", "return x / "), alarm[
            "births"
        ]


def test_counter_selecting_the_optimizer_is_restored(tmp_path):
    """The generator steps at each fourth count: with the count as the first run left it, it would not step in the
    second."""
    text = (
        HEAD.format(bad=4, who="D", skips=False, kind="Adam").lstrip()
        + textwrap.dedent("""
        class Loop:
            def __init__(self):
                self.count, self.rows = 0, []

            def train_d(self, x):
                with torch.no_grad():
                    fake = G(torch.randn(8, 3))
                loss = loss_of_d(x, fake)
                opt_d.zero_grad()
                loss.backward()
                opt_d.step()
                return loss.item()

            def train_g(self):
                loss = loss_of_g(G(torch.randn(8, 3)))
                opt_g.zero_grad()
                loss.backward()
                opt_g.step()
                return loss.item()

            def run(self):
                global i
                for i, x in enumerate(torch.utils.data.DataLoader(real[:8], batch_size=None, shuffle=True)):
                    row = [self.count, self.train_d(x)]
                    if self.count % 4 == 3:
                        row.append(self.train_g())
                    self.rows.append(row)
                    self.count += 1

        loop = Loop()
        loop.run()
        print(loop.count, loop.rows)
        """)
        + TAIL
    )
    got = helpers.run(tmp_path, text, "--on-alarm", "warn", "--undo-mb", "8")
    alarm = got.alarms[0]
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "jump", True), alarm["rerun_text"]
    assert "what it counts set back" in alarm["rerun_text"] and OVER in alarm["rerun_text"], alarm["rerun_text"]
    assert alarm["births"][0]["source"][:11] == "return x / "
    assert got.out == helpers.plain(tmp_path, "train.py").out
