"""finitude ctl: settings of a run are changed from outside while it trains."""

import json
import os
import textwrap
import types

import pytest
import torch

import helpers
from finitude.base import alive, config, control
from finitude.cli import ctl
from finitude.session import control as in_run, step_warnings
from finitude.store import runs

# The run changes its own settings by the command, as somebody else would. Steps 2 and 5 are bad.
PROGRAM = """
import glob
from finitude.cli import ctl
def ask(*words):
    (run,) = glob.glob("finitude-runs/*")
    assert ctl.main([run, *words], None) == 0
for i in range(8):
    if i == 1: ask("on-alarm=skip", "max-skips=3")
    if i == 3: ask("dump=statistics", "dump-steps=next=1")
    if i == 4: ask("on-alarm=")
    if i == 6: ask("dump-steps=next=1")
    opt.zero_grad()
    loss = loss_of(batches[i % 6]) * (NAN if i in (2, 5) else 1.0)
    try:
        loss.backward()
        opt.step()
    except FloatingPointError:
        print("stopped at", i)
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctl")
    return helpers.training(folder, textwrap.dedent(PROGRAM), "--dump", "off", "--capsules", "0")


def test_a_policy_holds_from_the_next_alarm(changed):
    assert changed.out == "stopped at 5\n", changed.text()
    assert [a["action"] for a in changed.alarms] == ["the step was skipped", "stopped"]
    assert "from this alarm on on-alarm=skip max-skips=3" in changed.err
    assert "from this alarm on on-alarm=stop" in changed.err


def test_steps_are_dumped_on_demand(changed):
    dumps = sorted(path.name for path in changed.folder.glob("finitude-runs/*/dumps/*.json"))
    assert dumps == ["step-000004.json", "step-000007.json"], changed.err


def test_what_was_asked_is_kept_as_toml(changed):
    (run,) = changed.folder.glob("finitude-runs/*")
    kept = control.read(str(run))
    assert kept.pop(control.ASKED).isdecimal()
    assert kept == {"max-skips": "3", "dump": "statistics", "dump-steps": "next=1"}
    ended = helpers.finitude(changed.folder, "ctl", str(run), "warnings=off")
    assert ended.code == 4 and "does not run any more" in ended.err


def a_run(folder, **settings):
    """The folder of a run of this process."""
    run = folder / "20260101-000000-run-1"
    run.mkdir()
    taken = control.taken(config.Config(**settings))
    (run / "run.json").write_text(json.dumps({"schema": 1, "process": alive.me(), "ctl": taken}))
    assert runs.State(str(run)).now() == "running"
    return str(run)


@pytest.mark.parametrize(
    "words, code, says",
    [
        (["on-alram=skip"], 2, "on-alarm"),
        (["on-alarm=skp"], 2, "skip"),
        (["seed=3"], 2, "is not changed while a run trains"),
        (["dump=tensors"], 4, "started with no --dump"),
        (["warnings=all"], 4, "--warnings off"),
        (["--no-such"], 2, "unknown option"),
        (["on-alarm=skip", "x"], 2, "is no KEY=VALUE"),
    ],
)
def test_what_cannot_be_changed_is_said(tmp_path, capsys, words, code, says):
    run = a_run(tmp_path, warnings="off")
    assert ctl.main([run, *words], None) == code
    assert says in capsys.readouterr().err and not os.path.exists(os.path.join(run, control.NAME))


def test_settings_are_shown_and_taken_back(tmp_path, capsys):
    run = a_run(tmp_path)
    for words in (["then=skip,stop", "warnings=growth"], ["warnings="], []):
        assert ctl.main([run, *words], None) == 0
    assert capsys.readouterr().out == "then=skip,stop\n"
    assert ctl.main([str(tmp_path / "none")], None) == 3


@pytest.mark.parametrize("text", ["on-alarm = 'skp'", "[", "on-alarm = 3", "seed = 1", "x" * 70_000])
def test_a_hostile_file_is_refused(tmp_path, text):
    (tmp_path / control.NAME).write_text(text)
    with pytest.raises(config.UsageError):
        control.read(str(tmp_path))


def test_warnings_follow_the_file(tmp_path, monkeypatch, capsys):
    asked = []
    stub = types.SimpleNamespace(
        set_signals=lambda *_: None,
        window=lambda _: {"ordinal": 0},
        warning_entries=lambda _, wanted, *more: asked.append(wanted) or "[]",
    )
    monkeypatch.setattr(step_warnings, "_native", stub)
    settings, report = config.Config(), types.SimpleNamespace(directory=str(tmp_path))
    run_control = in_run.Control(settings, report)
    one = step_warnings.StepWarnings(settings, report, run_control, lambda f, *a: f(*a), False)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    one.add(optimizer, "[]")
    for wanted in ("growth,dead", "off", "norm"):
        control.write(str(tmp_path), {"warnings": wanted})
        one.add(optimizer, "[]")
    (tmp_path / control.NAME).write_text("warnings = 'no-such'")
    one.add(optimizer, "[]")
    assert asked == ["all", "growth,dead", "norm", "norm"]
    assert capsys.readouterr().err.count("is not obeyed") == 1


@pytest.mark.parametrize("began, words, says", [("stop", "skip", 1), ("skip", "skip", 0), ("stop", "warn", 0)])
def test_ranks_that_do_not_ask_are_named(tmp_path, capsys, began, words, says):
    run = a_run(tmp_path)
    started = json.dumps({"schema": 1, "ctl": control.taken(config.Config()), "on_alarm": began})
    for rank in (0, 1):
        os.mkdir(os.path.join(run, f"rank-{rank}"))
        with open(os.path.join(run, f"rank-{rank}", "run.json"), "w") as f:
            f.write(started)
    assert ctl.main([run, f"on-alarm={words}"], None) == 0
    assert capsys.readouterr().err.count("--on-alarm skip or rollback") == says
    assert control.read(os.path.join(run, "rank-1")) == {"on-alarm": words}
