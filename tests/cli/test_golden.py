"""--golden: a running program against the dumps of another run."""

import json
import os
import subprocess
import sys
import threading

import pytest

import helpers
from finitude.base import golden_dumps
from finitude.base.own_child import OwnProcess

TRAINS = """
import os, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        self.head = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.encoder(x))
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for i in range(6):
    if i == int(os.environ.get("FROM", "99")):
        net.encoder[1].eps = 0.1
    loss = net(torch.randn(5, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def trained(folder, name, *options, **env):
    return helpers.run(folder, TRAINS, "--runs", name, *options, env=env)


def runs(folder, name):
    return [path for path in (folder / name).iterdir() if path.is_dir()]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    for kind in ("checksums", "statistics"):
        got = trained(folder, kind, "--dump", kind, "--dump-steps", "0,2-4")
        assert got.code == 0, got.text()
    return {kind: str(runs(folder, kind)[0]) for kind in ("checksums", "statistics")}


@pytest.mark.parametrize("kind", ["checksums", "statistics"])
def test_same_program_agrees_in_all_steps(tmp_path, golden, kind):
    got = trained(tmp_path, "runs", "--golden", golden[kind])
    assert f"finitude: 4 of 4 steps agree with --golden {golden[kind]}\n" in got.err, got.err
    assert not got.report["advisories"]
    written = sorted(path.name for path in runs(tmp_path, "runs")[0].glob("dumps/*.json"))
    assert written == [f"step-{step:06d}.json" for step in (0, 2, 3, 4)]


def test_first_step_and_module_that_differ_are_named(tmp_path, golden):
    got = trained(tmp_path, "runs", "--golden", golden["checksums"], FROM="3")
    (advisory,) = got.report["advisories"]
    assert (advisory["kind"], advisory["step"]) == ("golden-differs", 3), advisory
    assert "a module with other settings" in advisory["text"] and "Net.encoder.1 (LayerNorm)" in advisory["text"]
    assert "eps=0.1" in advisory["text"] and got.err.count("--golden") == 1 and "finitude diff " in got.err, got.err
    assert "train.py:" in advisory["text"] and got.code == 0


def test_operator_that_differs_is_named(tmp_path, golden):
    got = trained(tmp_path, "runs", "--golden", golden["statistics"], FROM="2")
    (advisory,) = got.report["advisories"]
    assert advisory["step"] == 2 and "layer_norm" in advisory["text"], advisory


def test_steps_that_never_came_are_named(tmp_path, golden):
    dump = os.path.join(golden["checksums"], "dumps", "step-000002.json")
    late = tmp_path / "step-000009.json"
    late.write_bytes(open(dump, "rb").read())
    got = trained(tmp_path, "runs", "--golden", str(late))
    assert f"finitude: 0 of 1 steps agree with --golden {late}; not compared: 9\n" in got.err, got.err


def test_damaged_golden_is_no_difference(tmp_path):
    damaged = tmp_path / "step-000001.json"
    damaged.write_text('{"checksum"')
    got = trained(tmp_path, "runs", "--golden", str(damaged))
    assert "step 1 cannot be compared with --golden" in got.err and not got.report["advisories"], got.text()
    assert got.code == 0 and "steps agree" not in got.err


TAKES_ANY_CHILD = """
import os, threading, time
def take():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.0005)
threading.Thread(target=take, daemon=True).start()
"""


def test_a_program_that_waits_for_any_child_hides_no_difference(tmp_path, golden):
    """Whether it or Finitude comes first is a race; that the process gave 0 is no answer of it."""
    got = helpers.run(tmp_path, TAKES_ANY_CHILD + TRAINS, "--golden", golden["checksums"], env={"FROM": "0"})
    differs = bool(got.report["advisories"])
    assert differs != ("cannot be compared with --golden" in got.err) and "steps agree" not in got.err, got.text()
    assert got.code == 0 and not got.report["failures"], got.text()


@pytest.mark.fast
def test_the_code_of_a_process_that_somebody_else_waited_for_is_not_known():
    def started(code):
        return OwnProcess([sys.executable, "-S", "-c", code])

    taken = started("raise SystemExit(3)")
    os.waitpid(taken.pid, 0)
    assert taken.poll() is not None and taken.is_taken
    late = started("import time; time.sleep(0.2); raise SystemExit(3)")
    threading.Thread(target=os.waitpid, args=(late.pid, 0)).start()
    late.wait()
    assert late.is_taken or late.returncode == 3
    for code, expected in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)):
        own = started(code)
        assert own.wait() == expected and own.poll() == expected and not own.is_taken
    own = started("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        own.wait(0.05)
    own.kill()
    assert own.wait() == -9


@pytest.mark.parametrize(("name", "message"), [("nothing", "does not exist"), (".", "holds no dumps")])
def test_golden_without_dumps_is_usage(tmp_path, name, message):
    got = trained(tmp_path, "runs", "--golden", str(tmp_path / name))
    assert got.code == 2 and message in got.err, got.text()


def test_files_of_each_layout_are_found(tmp_path):
    def put(name, text="{}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    ours = put("a/rank-0/dumps/step-000003.json"), put("a/rank-1/dumps/step-000003.json", json.dumps({"checksum": 1}))
    theirs = put("b/step7/rank0/dump.json"), put("b/step7/rank1/dump.json")
    for rank in (0, 1):
        assert golden_dumps.find(str(tmp_path / "a"), rank) == {3: ours[rank]}
        assert golden_dumps.find(str(tmp_path / "b"), rank) == {7: theirs[rank]}
        assert golden_dumps.find(theirs[0], rank) == ({7: theirs[0]} if rank == 0 else {})
    assert [golden_dumps.kind_of(path) for path in (*ours, theirs[0])] == ["statistics", "checksums", "checksums"]
    put("a/rank-0/dumps/step-000003.safetensors")
    assert golden_dumps.kind_of(ours[0]) == "tensors"
