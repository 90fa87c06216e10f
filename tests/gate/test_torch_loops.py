"""Loops that torch alone makes: functional_call, torch.func, PPO with epochs of mini-batches, meta-learning."""

import re
import textwrap

import pytest

from helpers import run, write_script
from plain_runs import plain_runs

HEAD = """
import hashlib, sys
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(5)
torch.set_num_threads(1)
BAD = {bad}
STOP = -2
CHECKED = False  # arguments of distributions


def normal(x):
    return x / x.norm(dim=-1, keepdim=True)


def end(*models):
    out = b"".join(p.detach().numpy().tobytes() for m in models for p in m.parameters())
    print("weights", hashlib.sha256(out).hexdigest(), flush=True)


def rows(step, n=8):
    x = torch.randn(n, 5)
    if step == BAD:
        x[3] = 0
    if step == STOP:
        end(model)
        sys.exit()
    return x
"""

BIRTH = "return x / x.norm(dim=-1, keepdim=True)"

LOOPS = {
    "functional_call": """
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(10):
            x = rows(step)
            named = {name: p * 1.0 for name, p in model.named_parameters()}
            loss = functional_call(model, named, (normal(x),)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        end(model)
        """,
    # Gradients come out of torch.func as values, and are laid where the optimizer looks for them.
    "func_grad": """
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        def loss_of(named, x):
            return functional_call(model, named, (normal(x),)).pow(2).mean()

        for step in range(10):
            found = grad(loss_of)({name: p.detach() for name, p in model.named_parameters()}, rows(step))
            for name, p in model.named_parameters():
                p.grad = found[name]
            optimizer.step()
        end(model)
        """,
    "ensemble_by_vmap": """
        model = nn.Linear(5, 3)
        stacked = nn.ParameterList([nn.Parameter(torch.randn(4, *p.shape)) for p in model.parameters()])
        model.stacked = stacked
        optimizer = torch.optim.Adam(stacked, lr=1e-2)
        names = ["weight", "bias"]
        for step in range(10):
            x = normal(rows(step))
            out = vmap(lambda w, b: functional_call(model, {"weight": w, "bias": b}, (x,)))(*stacked)
            loss = out.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        end(model)
        """,
    # Data is collected by the policy of the moment, then several epochs of shuffled mini-batches run over it.
    "ppo": """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.actor, self.critic = nn.Linear(5, 16), nn.Linear(16, 3), nn.Linear(16, 1)

            def forward(self, x):
                h = torch.tanh(self.body(normal(x)))
                return torch.distributions.Categorical(logits=self.actor(h), validate_args=CHECKED), self.critic(h).squeeze(-1)

        model = Policy()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        step = 0
        for iteration in range(3):
            states = torch.randn(32, 5)
            with torch.no_grad():
                policy, value = model(states)
                actions = policy.sample()
                before, returns = policy.log_prob(actions), states.sum(1)
                advantage = returns - value
            for epoch in range(2):
                for part in torch.randperm(32).split(16):
                    x = states[part]
                    if step == BAD:
                        x = x * torch.tensor([0.0] + [1.0] * 15)[:, None]
                    if step == STOP:
                        end(model)
                        sys.exit()
                    policy, value = model(x)
                    ratio = (policy.log_prob(actions[part]) - before[part]).exp()
                    gain = torch.min(ratio * advantage[part], ratio.clamp(0.8, 1.2) * advantage[part]).mean()
                    loss = -gain + 0.5 * (value - returns[part]).pow(2).mean() - 0.01 * policy.entropy().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    step += 1
        end(model)
        """,
    # Scripted and traced modules keep their parameters and buffers in C++, and show no dict of them.
    "torch_script": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.jit.script(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU()))
                self.head = torch.jit.trace(nn.Linear(8, 1), torch.zeros(2, 8))

            def forward(self, x):
                return self.head(self.body(x))

        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(8):
            loss = model(normal(rows(step))).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        end(model)
        """,
    # Inner steps keep their graph; the outer loss goes back through them.
    "meta_learning": """
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for step in range(8):
            optimizer.zero_grad()
            for task in range(2):
                x = normal(rows(step if task else -3))
                fast = dict(model.named_parameters())
                for inner in range(3):
                    loss = (functional_call(model, fast, (x,)) - task).pow(2).mean()
                    found = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                    fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), found)}
                outer = (functional_call(model, fast, (x,)) - task).pow(2).mean() / 2
                outer.backward()
            optimizer.step()
        end(model)
        """,
    # The inner loop has an optimizer of its own, made again for each task.
    "reptile": """
        import copy
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(6):
            fast = copy.deepcopy(model)
            inner = torch.optim.SGD(fast.parameters(), lr=0.05)
            x = normal(rows(step))
            for _ in range(3):
                loss = fast(x).pow(2).mean()
                inner.zero_grad()
                loss.backward()
                inner.step()
            for p, q in zip(model.parameters(), fast.parameters()):
                p.grad = p.detach() - q.detach()
            optimizer.step()
        end(model)
        """,
}
STEP = 4
# Distributions check their arguments unless asked not to: then it is the program itself that raises.
LOOPS["ppo_checked"] = LOOPS["ppo"].replace("validate_args=CHECKED", "validate_args=True")
# The inner optimizer is a new one at each task: its first step fails, and there is no earlier one to return to.
FIRST_STEP = {"reptile"}


def program(name, bad=-1, stop=-2):
    head = HEAD.format(bad=bad).replace("STOP = -2", f"STOP = {stop}")
    return head + textwrap.dedent(LOOPS[name])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What each loop prints without us: to its end, and ended before the step that will be bad."""
    folder = tmp_path_factory.mktemp("plain")
    jobs = {}
    for name in LOOPS:
        jobs[name] = [write_script(folder, program(name), f"{name}.py")]
        jobs[f"{name} before"] = [write_script(folder, program(name, stop=STEP), f"{name}_before.py")]
    return plain_runs(folder, jobs)


@pytest.mark.parametrize("name", LOOPS)
def test_a_healthy_loop_is_left_alone(tmp_path, plain, name):
    got = run(tmp_path, program(name))
    got.assert_silent()
    assert (got.code, got.out) == plain[name], got.text()


@pytest.mark.parametrize("name", LOOPS)
def test_a_bad_step_is_stopped_and_explained(tmp_path, plain, name):
    # The weights are printed where the program ends: they are those of the run that ended before this step.
    text = program(name, bad=STEP)
    got = run(tmp_path, "import atexit\natexit.register(lambda: end(model))\n" + text)
    alarm = got.the_alarm()
    assert got.code == 1 and alarm["weights"] == "clean", got.text()
    assert alarm["step"] == (0 if name in FIRST_STEP else STEP), got.text()
    assert alarm["births"] and alarm["births"][0]["source"] == BIRTH, (alarm["rerun_text"], alarm["births"], got.text())
    assert alarm["births"][0]["op"] == "aten::div" and alarm["cause"]["class"] == "division-by-zero", alarm["cause"]
    assert (
        alarm["rerun_by"] == ("restart" if name in FIRST_STEP | {"ppo_checked"} else "rewind")
        and alarm["rerun_verified"]
    ), alarm["rerun_text"]
    assert re.findall("weights .*", got.out)[-1] == re.findall("weights .*", plain[f"{name} before"][1])[-1]


def test_the_loops_differ(plain):
    """No two of them print the same weights: each is a training of its own."""
    states = {plain[name][1] for name in LOOPS}
    assert len(states) == len(LOOPS) - 1  # the two PPO loops are healthy in the same way
