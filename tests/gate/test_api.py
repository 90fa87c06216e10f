"""finitude.watch, allow and save in a program of its own, without `finitude run`."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file

from helpers import TRAINING, finitude, plain, run, write_script

# Every place of torch that a recorder may stand in for, as objects.
PLACES = """
def places():
    import torch.utils.data.dataloader as d
    from torch.optim import optimizer as o
    a, c, O, S = torch.autograd, nn.utils.clip_grad, torch.optim.Optimizer, torch.amp.GradScaler
    return [a._engine_run_backward, a.backward, a.grad, c.clip_grad_norm_, c.clip_grad_value_, c._clip_grads_with_norm_,
            nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, O.__init__, torch.optim.SGD.step, torch.optim.SGD.__init__,
            S.scale, S.step, S.update, S.unscale_, d.DataLoader.__iter__, d._BaseDataLoaderIter.__next__,
            nn.Module.__call__, torch.Tensor.backward, dict(o._global_optimizer_pre_hooks), dict(o._global_optimizer_post_hooks)]
def same(left, right):
    return all(a == b if isinstance(a, dict) else a is b for a, b in zip(left, right, strict=True))
"""

STEPS = """
def train(n, bad=()):
    for i in range(n):
        opt.zero_grad()
        loss = loss_of(batches[i % 6])
        if i in bad: loss = loss * NAN
        loss.backward()
        opt.step()
"""


def script(folder, body, env=None):
    """Runs a program that uses the API, under plain Python."""
    write_script(folder, TRAINING + PLACES + STEPS + "import finitude, sys\n" + body)
    return plain(folder, "train.py", env=env)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """One program that does several things in turn: starting torch once is enough for all of them."""
    folder = tmp_path_factory.mktemp("api")
    done = script(
        folder,
        """
import json
out = {}
before = places()
with finitude.watch(model, opt, runs="one", on_alarm="raise") as w:
    train(3)
    out["steps"] = w.report()["watched"]["steps"]
    out["during"] = same(before, places())
out["after context"] = same(before, places())
out["hooks after context"] = [len(opt._optimizer_step_pre_hooks), len(opt._optimizer_step_post_hooks), len(model._forward_hooks)]

handle = finitude.watch(model, opt, runs="two", on_alarm="raise")
try:
    train(3, bad=(1,))
except finitude.NonFiniteError as e:
    out["error"] = [e.report["step"], e.report["sink"]["kind"], isinstance(e, FloatingPointError)]
out["alarms"] = len(handle.alarms)
handle.close()
handle.close()
out["after handle"] = same(before, places())
train(2, bad=(1,))
out["after close nothing is stopped"] = not finite()
print(json.dumps(out))
""",
    )
    assert done.code == 0, done.err
    return folder, json.loads(done.out), done


def test_context_manager_restores_every_function_on_exit(watched):
    _, out, _ = watched
    assert out["steps"] == 3 and out["during"] is False and out["after context"] is True


def test_no_hook_is_left_behind(watched):
    assert watched[1]["hooks after context"] == [0, 0, 0]


def test_a_handle_raises_out_of_step_and_closes(watched):
    _, out, _ = watched
    # Counted from the first step of the optimizer: three before, under the other recorder.
    assert out["error"] == [4, "loss", True] and out["alarms"] == 1
    assert out["after handle"] is True and out["after close nothing is stopped"] is True


def test_each_recorder_writes_its_own_report_once(watched):
    folder, _, done = watched
    found = {name: [json.loads(p.read_text()) for p in folder.glob(f"{name}/*/report.json")] for name in ("one", "two")}
    assert [len(v) for v in found.values()] == [1, 1]
    assert (found["one"][0]["outcome"], found["two"][0]["outcome"]) == ("clean", "alarm")
    assert found["two"][0]["watched"]["steps"] <= 3, "what the first recorder counted is not counted again"
    assert sum(line.startswith("finitude: ") and "Report:" in line for line in done.err.splitlines()) == 2, done.err


def test_recorder_does_not_count_optimizers_deleted_before_it(tmp_path):
    done = script(
        tmp_path,
        """
for lr in (0.1, 0.2, 0.3):
    opt = None
    opt = torch.optim.SGD(model.parameters(), lr)
    with finitude.watch(model, opt, on_alarm="raise") as w:
        train(2)
    print(w.report()["watched"]["optimizers"])
""",
    )
    assert done.code == 0 and done.out.split()[1:] == ["1", "1"], done.text()


@pytest.mark.parametrize(
    "made", ["before, and not reported", *(pytest.param(m, marks=pytest.mark.thorough) for m in ("before", "behind"))]
)
def test_the_first_step_is_explained_as_it_happens(tmp_path, made):
    """Nothing could run it again: the program cannot be started again from here. The next ones are run again in
    place."""
    watch = "w = finitude.watch(on_alarm='skip')\n"
    begin = TRAINING.replace("opt =", watch + "opt =") if made == "behind" else TRAINING + watch
    if made == "before":
        begin = begin.replace("watch(", "watch(model, opt, ")
    write_script(
        tmp_path,
        "import finitude, json\n" + begin + STEPS + "train(6, bad=(0, 4))\nprint(json.dumps(w.report()['alarms']))\n",
    )
    done = plain(tmp_path, "train.py")
    alarms = json.loads(done.out)
    assert [(a["step"], a["rerun_by"], a["births"][0]["source"]) for a in alarms] == [
        (0, "trace", "if i in bad: loss = loss * NAN"),
        (4, "rewind", "if i in bad: loss = loss * NAN"),
    ], done.err
    for alarm in alarms:
        replayed = finitude(tmp_path, "replay", alarm["capsule"])
        assert replayed.code == 0 and "identical" in replayed.out, replayed.text()


def test_a_later_step_that_nothing_leads_back_to_is_not_called_the_first(tmp_path):
    watch = "model.weight.data[0, 0] = NAN\nw = finitude.watch(model, opt, on_alarm='skip')\n"
    end = "train(3)\nprint(json.dumps(w.report()['alarms']))\n"
    write_script(tmp_path, "import finitude, json\n" + TRAINING + watch + STEPS + end)
    done = plain(tmp_path, "train.py")
    later = json.loads(done.out)[1]
    assert (later["step"], later["rerun_by"]) == (1, "trace") and "first" not in later["rerun_text"], done.text()


def test_options_of_watch_are_checked(tmp_path):
    got = run(
        tmp_path,
        "import finitude, finitude.api as a, finitude.session.native_callbacks as c\nc.session = None\n"
        "try: finitude.watch(on_alarm='skp')\nexcept Exception as e: print(e)",
    )
    assert "skip" in got.out, got.text()


def test_ignored_options_of_an_active_watch_are_named(tmp_path):
    """%load_ext finitude has begun one, say."""
    write_script(
        tmp_path,
        "import finitude\nfinitude.watch(runs='here')\nfinitude.watch(runs='here', on_alarm='skip', max_skips=10)",
    )
    done = plain(tmp_path, "train.py")
    assert done.code == 0 and "already watching, and not with on_alarm='skip':" in done.err, done.text()
    again = finitude(tmp_path, "run", "train.py")
    assert "already watching" not in again.err, again.text()


def test_watch_under_finitude_run_returns_the_runs_recorder(tmp_path):
    got = run(
        tmp_path,
        TRAINING
        + STEPS
        + """
import finitude
with finitude.watch(model, opt, on_alarm="skip") as w:
    train(3)
train(3)
print(w.report()["watched"]["steps"])
""",
    )
    assert got.out == "6\n" and got.watched["steps"] == 6, got.text()
    got.assert_silent()


# The logarithm of -1 is NaN with a finite derivative: the loss is bad, the weights are in no danger.
ALLOW = (
    TRAINING
    + """
import finitude
finitude.allow({what}, reason="a scheduled dead batch")
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i in {when}: loss = (loss * 0 - 1).log()
    loss.backward()
    opt.step()
print("ended")
"""
)


@pytest.mark.parametrize("what", ["op='log'", "op='aten::log'"])
def test_an_allowed_birth_is_no_alarm(tmp_path, what):
    got = run(tmp_path, ALLOW.format(what=what, when=(2,)), "--level", "trace")
    got.assert_no_alarm()
    assert got.out == "ended\n" and len(got.advisories("allowed")) == 1, got.text()
    assert not any("unused" in text for text in got.watched["not_watched"])


def test_birth_elsewhere_alarms_and_unused_allowance_is_listed(tmp_path):
    got = run(tmp_path, ALLOW.format(what="op='sqrt'", when=(2,)), "--level", "trace")
    assert got.the_alarm()["step"] == 2
    assert any("sqrt" in text and "a scheduled dead batch" in text for text in got.watched["not_watched"]), got.text()


def test_allowed_birth_is_no_alarm_however_often(tmp_path):
    got = run(tmp_path, ALLOW.format(what="op='log'", when=(0, 1, 2, 3, 5)), "--level", "trace")
    got.assert_no_alarm()
    assert got.out == "ended\n" and len(got.advisories("allowed")) == 5, got.text()


@pytest.mark.parametrize("known, unknown", [(2, 4), (4, 2)])
def test_module_is_allowed_only_at_its_place(tmp_path, known, unknown):
    text = (
        TRAINING
        + """
import finitude
class Dead(nn.Module):
    def forward(self, x): return (x * 0 - 1).log()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.dead, self.live = model, Dead(), Dead()
    def forward(self, x, i):
        x = self.lin(x)
        return self.dead(x) if i == KNOWN else self.live(x) if i == UNKNOWN else x
net = Net()
finitude.allow(module="dead", reason="known")
for i, x in enumerate(batches):
    opt.zero_grad()
    net(x, i).mean().backward()
    opt.step()
"""
    )
    got = run(
        tmp_path,
        text.replace("UNKNOWN", str(unknown)).replace("KNOWN", str(known)),
        "--level",
        "trace",
        "--on-alarm",
        "skip",
    )
    found = [(a["step"], [b["module"] for b in a["births"][:1]]) for a in got.alarms]
    assert found == [(unknown, ["Net.live"])], got.text()
    assert [a["step"] for a in got.advisories("allowed")] == [known], got.text()


def test_an_allowed_tensor_is_silent(tmp_path):
    setting = "model.weight.data[0, 0] = INF\nmodel.weight.register_hook(lambda g: torch.zeros_like(g))\n"
    loop = (
        "for x in batches:\n    opt.zero_grad()\n"
        "    (model.bias.pow(2).sum() + torch.sigmoid(model.weight).sum()).backward()\n    "
        "opt.step()\nprint('ended')\n"
    )
    allowed = run(
        tmp_path,
        TRAINING
        + "import finitude\n"
        + setting
        + "finitude.allow(tensor=model.weight, reason='an open bound')\n"
        + loop,
        "--on-alarm",
        "raise",
    )
    assert allowed.out == "ended\n" and not allowed.alarms, allowed.text()
    assert run(tmp_path, TRAINING + setting + loop, "--on-alarm", "raise").the_alarm()["sink"]["kind"] == "parameter"


@pytest.mark.parametrize("call", ["finitude.allow(reason='x')", "finitude.allow(op='log')"])
def test_allow_wants_to_know_what_and_why(tmp_path, call):
    got = run(tmp_path, f"import finitude\ntry: {call}\nexcept ValueError as e: print('ValueError')")
    assert got.out == "ValueError\n"


SAVES = (
    TRAINING
    + """
import finitude
for i, x in enumerate(batches):
    opt.zero_grad()
    if i == 1: finitude.save("of an earlier step", x)
    out = finitude.save("scores", model(x), gradient=True, values=True)
    assert out.requires_grad
    kept = out.detach().clone()
    loss = (out - 1).pow(2).mean()
    if i == 2: loss = loss * NAN
    loss.backward()
    if i == 2:
        torch.save(kept, "kept.pt")
        with torch.no_grad(): out.mul_(2)
    opt.step()
"""
)


def test_save_keeps_statistics_gradient_and_values(tmp_path):
    got = run(tmp_path, SAVES, "--on-alarm", "raise")
    alarm = got.the_alarm()
    assert list(alarm["saved"]) == ["scores", "scores.grad"], got.text()
    assert alarm["saved"]["scores"]["nan"] == 0 and alarm["saved"]["scores.grad"]["nan"] > 0
    values = load_file(tmp_path / alarm["saved_values"])
    assert torch.equal(values["scores"], torch.load(tmp_path / "kept.pt")) and values["scores.grad"].isnan().all()
    assert "saved scores [" in " ".join(got.err.split()), got.text()


def test_redacted_runs_save_no_values(tmp_path):
    got = run(tmp_path, SAVES, "--on-alarm", "raise", "--redact")
    assert "saved_values" not in got.the_alarm() and not list(tmp_path.rglob("saved-*")), got.text()


def test_save_without_a_recorder_returns_the_tensor(watched, tmp_path):
    got = run(
        tmp_path,
        "import finitude, torch, finitude.session.native_callbacks as c\nc.session = None\n"
        "t = torch.ones(3)\nprint(finitude.save('x', t) is t)",
    )
    assert got.out == "True\n"


def test_step_runs_the_closure(tmp_path):
    got = run(
        tmp_path,
        TRAINING
        + """
import finitude
for x in batches:
    def closure():
        opt.zero_grad()
        loss = loss_of(x)
        loss.backward()
        opt.step()
        return loss
    assert isinstance(finitude.step(closure), torch.Tensor)
""",
    )
    got.assert_silent()
    assert got.watched["steps"] == 6


def test_package_imports_without_loading_torch(tmp_path):
    got = plain(
        tmp_path,
        "-c",
        "import sys, finitude; print('torch' in sys.modules, finitude.NonFiniteError.__mro__[1].__name__)",
    )
    assert got.out == "False FloatingPointError\n", got.err


def test_help_and_version_name_the_program(tmp_path):
    assert finitude(tmp_path, "--help").out.startswith("usage: finitude run")
    assert finitude(tmp_path, "--version").out.startswith("finitude ")


def test_no_module_has_the_name_of_something_public():
    """Importing a submodule binds its name in the package: it would take the place of the function."""
    import finitude as package_itself

    package = pathlib.Path(package_itself.__file__).parent
    assert not [
        name for name in package_itself.__all__ if (package / name).exists() or (package / f"{name}.py").exists()
    ]
