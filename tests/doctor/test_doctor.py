"""`finitude doctor` as a command: options, exit codes, output, time, checks of one's own, the page of checks."""

import pathlib
import re
import textwrap
import time

import pytest

from doctor_support import TRAINING, doctor, examine, found
from finitude.doctor import all_checks, table
from helpers import finitude, write_script

ROOT = pathlib.Path(__file__).parents[2]
HEALTHY = (
    TRAINING + "for _ in range(50):\n    opt.zero_grad()\n    F.cross_entropy(model(x), y).backward()\n    opt.step()\n"
)


def test_there_are_thirty_one_described_checks():
    checks = all_checks()
    assert sorted({c.id for c in checks}, key=lambda i: int(i[1:])) == [f"P{i}" for i in range(1, 32)]
    assert all(c.text.endswith(".") for c in checks)
    assert len({(c.id, c.looks_at) for c in checks}) == len(checks)


def test_the_page_has_the_table_of_the_checks():
    page = (ROOT / "docs/doctor.md").read_text()
    assert table() in page, "docs/doctor.md: python -c 'import finitude.doctor as d; print(d.table())'"


def test_every_check_has_a_program_that_triggers_it():
    spoken = set()
    for name, kind in (
        ("source", "source"),
        ("steps", "steps"),
        ("silent_faults", "steps"),
        ("runs", "run"),
        ("runs_in_depth", "run"),
        ("logs", "log"),
    ):
        text = (ROOT / f"tests/doctor/test_doctor_{name}.py").read_text()
        spoken |= {(p, kind) for p in re.findall(r'"(P\d+)"', text)}
    # Of the first steps on hardware that tests do not have: test_doctor_hardware.
    missing = {(c.id, c.looks_at) for c in all_checks()} - spoken - {("P3", "steps")}
    assert not missing


def test_script_ends_after_first_steps_with_silent_stdout(tmp_path):
    text = HEALTHY + "open('end', 'w')\n"
    write_script(
        tmp_path, "print('hello')\nimport atexit\natexit.register(lambda: open('exit', 'w'))\n" + text.lstrip("\n")
    )
    done = finitude(tmp_path, "doctor", "train.py")
    assert (done.code, done.err) == (0, "") and "hello" not in done.out and "nothing found" in done.out
    assert not (tmp_path / "end").exists() and not (tmp_path / "exit").exists()


def test_what_the_script_prints_can_be_seen(tmp_path):
    write_script(tmp_path, "import sys\nprint('hello', sys.argv[1:])\n" + HEALTHY.lstrip("\n"))
    done = finitude(tmp_path, "doctor", "--show-output", "train.py", "--lr", "two words")
    assert done.code == 0 and "hello ['--lr', 'two words']" in done.err and "hello" not in done.out


def test_a_script_that_swallows_every_exception_is_ended(tmp_path):
    text = (
        TRAINING + "while True:\n    try:\n        F.cross_entropy(model(x), y).backward()\n        "
        "opt.step()\n    except BaseException:\n        pass\n"
    )
    begin = time.monotonic()
    code, document, _ = examine(tmp_path, text, "--seconds", "2")
    assert (code, document["looked_at"]) == (0, ["source", "steps"]) and time.monotonic() - begin < 20


@pytest.mark.parametrize(
    "body, why",
    [
        ("while True:\n    pass\n", "1 s were over"),
        ("raise ValueError('no data')\n", "ValueError: no data"),
        ("print('done')\n", "the script ended"),
        ("import os\nos._exit(3)\n", "ended before anything"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "ended before anything"),
    ],
    ids=["hangs", "raises", "never trains", "leaves", "is killed"],
)
def test_missing_steps_are_reported(tmp_path, body, why):
    code, document, err = examine(tmp_path, body, "--seconds", "1")
    assert code == 4 and document["findings"] == []
    assert why in document["not_looked_at"][0]["why"] and "not seen: steps" in err


def test_processes_started_by_script_are_not_reported_clean(tmp_path):
    text = """
        import torch
        import torch.multiprocessing as mp
        def work(rank):
            torch.manual_seed(0)
            model = torch.nn.Linear(3, 3)
            model(torch.randn(2, 3)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        mp.start_processes(work, nprocs=2, start_method="fork")
        """
    write_script(tmp_path, text)
    done = finitude(tmp_path, "doctor", "train.py")
    assert done.code == 4 and "not seen: steps" in done.out and "before any optimizer step" in done.err


def test_many_kinds_of_programs_are_examined_without_trouble(tmp_path):
    """Sparse, nested, complex, meta and vectorised tensors, script functions, checkpoints with a backward of their
    own."""
    body = """
        @torch.jit.script
        def squash(x):
            return torch.nn.functional.softmax(x, dim=-1).sum()
        table = nn.Embedding(10, 8, sparse=True)
        other = torch.optim.SparseAdam(table.parameters())
        with torch.device("meta"):
            nn.Linear(3, 3)(torch.randn(2, 3))
        weights = dict(model.named_parameters())
        for _ in range(4):
            h = table(torch.randint(0, 10, (6,)))
            torch.func.vmap(torch.func.grad(lambda w, a: torch.func.functional_call(model, w, (a,)).sum()), in_dims=(None, 0))(weights, h.detach())
            c = nn.Identity()(torch.complex(h, h))
            nn.Identity()(torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)))
            nn.Linear(8, 8)(torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)]))
            z = torch.utils.checkpoint.checkpoint(model, h, use_reentrant=True)
            opt.zero_grad(), other.zero_grad()
            (squash(z) + F.cross_entropy(z, y[:6]) + c.abs().mean() + nn.LSTM(8, 4)(h)[0].mean()).backward()
            opt.step(), other.step()
        """
    code, document, err = examine(tmp_path, TRAINING + textwrap.dedent(body))
    assert (code, document["trouble"], document["not_looked_at"]) == (0, [], []), err
    assert not found(document, verdicts=("bad", "warn"))


def test_bad_finding_outweighs_missing_steps(tmp_path):
    code, document, err = examine(tmp_path, TRAINING + "F.cross_entropy(model(x), y + 2).backward()\n")
    assert code == 1 and found(document, "P11") and "Error" in err


def test_same_finding_of_source_and_steps_appears_once(tmp_path):
    text = (
        TRAINING
        + """
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""
    )
    _, document, _ = examine(tmp_path, text)
    (finding,) = found(document, "P7")
    assert finding["seen_in"] == "steps"


def test_a_module(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    write_script(tmp_path / "package", HEALTHY, "train.py")
    code, document, err = doctor(tmp_path, "-m", "package.train")
    assert (code, document["looked_at"], document["findings"]) == (0, ["source", "steps"], []), err


@pytest.mark.parametrize(
    "words, code, message",
    [
        ([], 3, "no run found: looked in"),
        (["-m"], 2, "-m needs the name of a module"),
        (["--stattic", "train.py"], 2, "did you mean --static"),
        (["--steps", "0", "train.py"], 2, "above 0"),
        (["--steps"], 2, "needs a value"),
        (["nowhere.py"], 3, "No such file"),
        (["-m", "nowhere.at.all"], 3, "no file of the module"),
        (["wrong.py"], 3, "wrong.py:1: not Python"),
        (["binary.py"], 3, "not Python"),
        (["--rules", "nowhere.py", "train.py"], 3, "nowhere.py"),
        (["--rules", "wrong.py", "train.py"], 3, "SyntaxError"),
        (["folder"], 3, "holds no report"),
    ],
    ids=lambda w: " ".join(w) if isinstance(w, list) else None,
)
def test_what_cannot_be_done(tmp_path, words, code, message):
    (tmp_path / "wrong.py").write_text("x = = 1\n")
    (tmp_path / "binary.py").write_bytes(b"\0\1\2\xff")
    (tmp_path / "folder").mkdir()
    write_script(tmp_path, HEALTHY)
    done = finitude(tmp_path, "doctor", *words)
    assert (done.code, done.out) == (code, "") and message in done.err and "Traceback" not in done.err


RULES = """
from finitude.doctor import bad, check, note

@check("X1", "house-rule", "source")
def no_adam(source):
    "Adam, which this house does not use."
    for call in source.calls("torch.optim.Adam*", "torch.optim.SGD"):
        yield bad(f"{call.name} is not used here", "LBFGS", call.at)

@check("X2", "small-batches", "steps")
def small(steps):
    "Batches of fewer than 100 rows."
    rows = min((i["shape"][0] for i in steps.inputs if i["shape"]), default=0)
    if rows < 100:
        yield note(f"batches of {rows} rows", "more")

@check("X3", "broken", "source")
def broken(source):
    "Always fails."
    yield 1 / 0
"""


def test_checks_of_ones_own(tmp_path):
    write_script(tmp_path, RULES, "rules.py")
    code, document, err = examine(tmp_path, HEALTHY, "--rules", "rules.py")
    assert code == 1 and [(f["check"], f["verdict"]) for f in document["findings"]] == [("X1", "bad"), ("X2", "note")]
    assert document["findings"][1]["text"] == "batches of 16 rows" and "X3 broken failed: ZeroDivisionError" in err


def test_help_list_and_completion(tmp_path):
    done = finitude(tmp_path, "doctor", "--help")
    assert done.code == 0 and "--seconds" in done.out
    assert "P19" in finitude(tmp_path, "doctor", "--checks").out
    completion = finitude(tmp_path, "completion", "bash").out
    assert "--twice" in completion and " doctor " in completion


def test_the_recipe_and_the_help_work_as_shown(tmp_path):
    page = (ROOT / "docs/recipes/add-a-check.md").read_text()
    code = "\n".join(
        line[4:]
        for line in page.split("    from finitude.doctor")[1]
        .join(["    from finitude.doctor", ""])
        .split("\n\n1.")[0]
        .splitlines()
    )
    write_script(tmp_path, code, "rules.py")
    exit_code, document, err = examine(tmp_path, HEALTHY, "--static", "--rules", "rules.py")
    assert exit_code == 0 and found(document, "X1"), err


def test_a_norm_that_half_precision_got_wrong():
    """P13 on the calls of a device whose norms of float16 gradients this machine does not compute."""
    from finitude.doctor.checks import clipping
    from finitude.doctor.facts import Steps

    for norm, verdicts in ((0.0, ["warn"]), (1.99e-4, []), (2e-4, [])):
        at = {"file": "/srv/fits/train.py", "line": 3}
        events = [
            {"what": "before-clip", "finite": True, "exact": 2e-4, "dtypes": ["float16"], "top": [], "bad": [], **at},
            {
                "what": "clip",
                "by": "norm",
                "norm": norm,
                "max_norm": 1.0,
                "norm_type": 2.0,
                "parameters": 1,
                "gradients": 1,
                "owned": [1],
                **at,
            },
        ]
        assert [f.verdict for f in clipping.as_called(Steps({"events": events, "steps": []}))] == verdicts


def test_hardware_is_judged_by_facts_of_the_steps():
    """P3 and P1 on cards that this machine does not have: on their facts."""
    from finitude.doctor.checks import hardware, precision, tf32
    from finitude.doctor.facts import Steps

    def steps(capability, dtype):
        return Steps(
            {
                "capability": capability,
                "device_name": "a card",
                "layers": [],
                "steps": [],
                "events": [],
                "autocast": [{"device": "cuda", "dtype": dtype, "at": ["/srv/fits/train.py", 3], "grad": True}],
            }
        )

    assert [f.verdict for f in hardware.emulated(steps([7, 5], "bfloat16"))] == ["warn"]
    assert [f.verdict for f in precision.float16_without_need(steps([9, 0], "float16"))] == ["warn"]
    card = {"capability": [9, 0], "device_name": "a card", "autocast": [], "events": [], "matmul_precision": "highest"}
    for products, verdicts in (
        ({"float32": 60, "bfloat16": 40}, ["note"]),
        ({"float32": 1, "bfloat16": 99}, []),
        ({}, []),
    ):
        assert [f.verdict for f in tf32.unreadable_settings(Steps({**card, "products": products}))] == verdicts
    layer = {"device": "cuda", "dtype": "bfloat16", "at": ["/srv/fits/train.py", 3]}
    for capability, verdicts in (([7, 5], ["warn"]), ([8, 0], [])):
        assert [
            f.verdict for f in hardware.emulated(Steps({**card, "capability": capability, "layers": [layer]}))
        ] == verdicts
    for capability, dtype in (([9, 0], "bfloat16"), ([7, 5], "float16"), (None, "bfloat16")):
        seen = steps(capability, dtype)
        assert not list(hardware.emulated(seen)) and not list(precision.float16_without_need(seen))
