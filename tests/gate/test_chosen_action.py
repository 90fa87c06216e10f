"""watch(on_alarm=function): the program says what to do with each alarm."""

import json
import textwrap

import pytest

import helpers

PROGRAM = """
import finitude, json
said, weights = [], []

def choose(alarm):
    said.append((alarm["step"], alarm["cause"]["class"], [b["line"] > 0 for b in alarm["births"][:1]]))
    alarm["step"] = "changed by the function"
    return {1: "skip", 2: None, 4: "what", 5: "warn", 7: "raise"}.get(said[-1][0]) or 1 / 0

with finitude.watch(model, opt, on_alarm=choose, capsules=0) as w:
    try:
        for i in range(9):
            opt.zero_grad()
            (loss_of(batches[i % 6]) * (NAN if i in (1, 2, 4, 5, 7) else 1.0)).backward()
            opt.step()
            if i == 4: opt_state = finite()
            if i == 5: [p.data.zero_() for p in model.parameters()]
    except finitude.NonFiniteError as e:
        print("stopped", e.report["step"])
    print(opt_state, json.dumps([(a["step"], a["action"]) for a in w.alarms]))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chosen")
    helpers.write_script(folder, helpers.TRAINING + textwrap.dedent(PROGRAM))
    done = helpers.plain(folder, "train.py")
    assert done.code == 0, done.text()
    return done


def test_each_alarm_is_treated_as_it_says(program):
    stopped, alarms, said = program.out.splitlines()
    assert stopped == "stopped 7" and alarms.startswith("True ")
    actions = dict(json.loads(alarms.partition(" ")[2]))
    skipped, applied = "the step was skipped", actions[5]
    assert [actions[i] for i in (1, 2, 4)] == [skipped] * 3 and "applied" in applied, program.text()
    assert [step for step, *_ in json.loads(said)] == [1, 2, 4, 5, 7]


def test_it_gets_the_explained_alarm(program):
    first = json.loads(program.out.splitlines()[2])[0]
    assert first[2] == [True], first


def test_a_failing_function_leaves_the_policy(program):
    assert program.err.count("the function on_alarm of watch") == 1
    assert "failed: ZeroDivisionError" in program.err
