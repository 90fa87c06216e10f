"""Rules of the user's own: heard beside the built-in ones, with experiments, and never at the training's expense."""

import json
import pathlib

import jsonschema
import pytest

import helpers
from finitude import rules

SCHEMA = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())

# An angle at a pole of the tangent; no built-in rule knows it.
PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(6, 3)
gate = torch.tensor([1.0, 2.0, 0.0, 4.0])
for step in range(5):
    opt.zero_grad()
    y = model(x)
    if step == 3:
        y = y * torch.reciprocal(gate)
    loss = (y * y).mean()
    loss.backward()
    opt.step()
print("done")
"""
GATE = """
import finitude

@finitude.rule("gate-closed")
def gate_closed(birth):
    if birth.first != "aten::reciprocal" or not birth.input("self")["zero"]:
        return None
    assert birth.clamped("self", min=1e-6) is True
    assert birth.in_dtype("float64") is True
    assert birth.history["optimizer"] == "SGD" and len(birth.history["loss"]) == 3
    return finitude.Cause("user:gate-closed", f"{birth.input('self')['zero']} gate closed to exactly 0 at {birth.source}",
                          fix="gate.clamp(min=1e-6)", score=finitude.rules.POINT + 50)
"""


def cause_of(done):
    jsonschema.validate(done.report, SCHEMA)
    return done.the_alarm()["cause"]


def with_rules(folder, text, program=PROGRAM, **more):
    helpers.write_script(folder, text, "my_rules.py")
    return helpers.run(folder, program, "--rules", "my_rules.py", **more)


def test_user_rule_is_applied_and_proven_by_experiments(tmp_path):
    done = with_rules(tmp_path, GATE)
    cause = cause_of(done)
    assert (cause["class"], cause["rule"], cause["confidence"]) == ("user:gate-closed", "gate-closed", "proven"), (
        done.text()
    )
    assert cause["text"].startswith("1 gate closed to exactly 0 at y = y * torch.reciprocal(gate)")
    own = [e for e in cause["experiments"] if not e["name"].startswith("whole step")]
    assert [(e["outcome"], e["confirms"]) for e in own] == [("finite", True), ("still Inf", True)]
    assert done.the_alarm()["fix"]["text"].startswith("gate.clamp(min=1e-6)")
    assert "gate-closed" in done.err and "gate.clamp(min=1e-6)" in done.err


def test_without_user_rules_the_built_in_ones_apply(tmp_path):
    cause = cause_of(helpers.run(tmp_path, PROGRAM))
    assert cause["class"] == "division-by-zero" and "rule" not in cause


def test_higher_score_wins_and_ties_go_to_builtin(tmp_path):
    assert cause_of(with_rules(tmp_path, GATE.replace("+ 50", "- 600")))["class"] == "division-by-zero"
    weak = GATE.replace(
        'assert birth.in_dtype("float64") is True', 'assert birth.in_dtype("float64", finite=True) is False'
    )
    contradicted = cause_of(with_rules(tmp_path, weak.replace("+ 50", "+ 100")))
    assert contradicted["class"] == "division-by-zero", "a contradicted experiment costs 150"


def test_rule_may_lower_but_not_raise_its_confidence(tmp_path):
    less = GATE.replace("score=", 'confidence="possible", score=')
    assert cause_of(with_rules(tmp_path, less))["confidence"] == "possible"
    more = GATE.replace("score=", 'confidence="proven", score=').replace("assert birth.clamped", "0 and birth.clamped")
    more = more.replace('assert birth.in_dtype("float64") is True', "pass")
    assert cause_of(with_rules(tmp_path, more))["confidence"] == "possible"


def test_it_may_stand_in_the_program_itself(tmp_path):
    assert cause_of(helpers.run(tmp_path, GATE + PROGRAM))["class"] == "user:gate-closed"


def test_it_is_heard_in_a_second_process(tmp_path):
    popped = PROGRAM.replace("for step in range(5):", "steps = list(range(5))\nwhile steps:\n    step = steps.pop(0)")
    done = with_rules(tmp_path, GATE, popped)  # a rewind cannot give back what was popped
    alarm = done.the_alarm()
    assert (alarm["cause"]["class"], alarm["rerun_by"]) == ("user:gate-closed", "restart"), done.text()


@pytest.mark.parametrize(
    "body, said",
    [
        ("    return 1 / 0", "failed (ZeroDivisionError"),
        ("    return 'because'", "answers str, not a finitude.Cause"),
        (
            "    return finitude.Cause('my-class', 'text')",
            "answers the class 'my-class'; one of your own begins with 'user:'",
        ),
        ("    return finitude.Cause('overflow', '')", "answers without a text"),
        ("    return birth.no_such_thing", "failed (AttributeError"),
    ],
)
def test_broken_rule_is_named_once_without_harm(tmp_path, body, said):
    text = f"import finitude\n@finitude.rule('mine')\ndef mine(birth):\n{body}\n"
    helpers.write_script(tmp_path, text, "my_rules.py")
    skipped = PROGRAM.replace("if step == 3:", "if step in (1, 3):")  # one behind the other is a repeat
    done = helpers.run(tmp_path, skipped, "--rules", "my_rules.py", "--on-alarm", "skip")
    assert done.code == 0 and "done" in done.out
    assert done.err.count("the rule 'mine'") == 1 and said in done.err, done.err
    assert [(a["cause"]["class"], a["rerun"]) for a in done.alarms] == [("division-by-zero", "persistent")] * 2


def test_unloadable_rules_file_is_named_and_run_continues(tmp_path):
    done = with_rules(tmp_path, "import no_such_module_at_all\n")
    assert "cannot be loaded (ModuleNotFoundError" in done.err and cause_of(done)["class"] == "division-by-zero"
    done = helpers.run(tmp_path, PROGRAM, "--rules", "nowhere.py")
    assert "nowhere.py' cannot be loaded" in done.err and cause_of(done)["class"] == "division-by-zero"


def test_several_files_and_the_configuration_key(tmp_path):
    helpers.write_script(tmp_path, GATE, "one.py")
    helpers.write_script(
        tmp_path,
        "import finitude\n@finitude.rule('two')\ndef two(birth):\n    return finitude.Cause('user:two', 'text', "
        "score=finitude.rules.ORIGIN, unambiguous=True)\n",
        "two.py",
    )
    both = cause_of(helpers.run(tmp_path, PROGRAM, "--rules", "one.py", "--rules=two.py"))
    assert (both["class"], both["confidence"]) == ("user:two", "likely")
    (tmp_path / "finitude.toml").write_text('rules = ["one.py", "two.py"]\n')
    assert cause_of(helpers.run(tmp_path, PROGRAM, "--config", "finitude.toml"))["class"] == "user:two"


def test_the_classes_are_those_of_the_schema():
    schema = SCHEMA["$defs"]["cause"]["properties"]["class"]["anyOf"]
    assert set(schema[1]["enum"]) == {*rules.CLASSES, "unknown"}
    assert schema[0]["pattern"] == "^" + rules._OWN_CLASS.pattern


def test_the_scale_is_that_of_the_engine():
    header = (pathlib.Path(__file__).parents[2] / "src" / "explain" / "evidence.h").read_text()
    for name, value in (
        ("Origin", rules.ORIGIN),
        ("OneMeaning", rules.ONE_MEANING),
        ("Setting", rules.SETTING),
        ("Point", rules.POINT),
        ("Range", rules.RANGE),
        ("Infinities", rules.INFINITIES),
        ("SinkOnly", rules.SINK_ONLY),
    ):
        assert f"kScore{name} = {value};" in header
