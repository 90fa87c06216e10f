"""Processes that a watched script starts: those that train are watched, each by itself, and no other."""

import json
import sys

import pytest

from helpers import TRAINING, finitude, write_script
from process_support import checked, cold, loop, made

pytestmark = pytest.mark.slow


def test_training_subprocesses_are_watched_and_others_leave_nothing(tmp_path):
    write_script(tmp_path, loop(4), "child.py")
    write_script(
        tmp_path,
        """
    import subprocess, sys
    run = lambda *words: subprocess.run([sys.executable, *words]).returncode
    print(run("child.py"), run("-c", "import torch; print('only imports')"), run("-c", "print('plain')"), flush=True)
    """,
    )
    got = checked(finitude(tmp_path, "run", "--report", "report.json", "--on-alarm", "skip", "train.py"))
    assert (got.code, got.out) == (0, "ended 11 True\nonly imports\nplain\n0 0 0\n"), got.text()
    assert got.the_alarm()["rerun_by"] == "rewind"
    assert len(made(tmp_path)) == 1 and got.watched["steps"] == 12
    assert got.err.splitlines()[-1].startswith("finitude: 12 steps watched")


PROCESSES = """
import torch.multiprocessing as mp, os, sys
def train(i, bad):
    torch.manual_seed(i)
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        opt.zero_grad()
        loss = (model(torch.randn(8, 4)) - 1).pow(2).mean()
        if step == 3 and i == bad: loss = loss * NAN
        loss.backward()
        opt.step()
    print("child", i, all(bool(torch.isfinite(p).all()) for p in model.parameters()), flush=True)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", pytest.param("forkserver", marks=pytest.mark.thorough)])
def test_multiprocessing(tmp_path, method):
    write_script(
        tmp_path,
        TRAINING
        + PROCESSES
        + f"""
if __name__ == "__main__":
    context = mp.get_context("{method}")
    all_of_them = [context.Process(target=train, args=(i, 1)) for i in range(2)]
    for p in all_of_them: p.start(); p.join()
    print([p.exitcode for p in all_of_them])
""",
    )
    got = checked(finitude(tmp_path, "run", "--report", "report.json", "train.py"))
    assert got.code == 0 and got.out == "child 0 True\n[0, 1]\n", got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"]) == (3, "rewind") and "loss * NAN" in alarm["births"][0]["source"], (
        got.text()
    )
    assert len(made(tmp_path)) == 2 and got.watched["steps"] == 10


# A pool is the same with either; that a spawned process is watched and goes back is what test_multiprocessing shows.
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.thorough), "fork"])
def test_a_search_of_settings_in_a_pool(tmp_path, method):
    """pool.map runs list(map(train, settings)): a step goes back within the training of one setting. Nobody could start
    that process again."""
    write_script(
        tmp_path,
        TRAINING
        + PROCESSES.replace("def train(i, bad):", "def train(i, bad=2):")
        + f"""
if __name__ == "__main__":
    with mp.get_context("{method}").Pool(2) as pool:
        pool.map(train, range(4), chunksize=2)
""",
    )
    got = checked(finitude(tmp_path, "run", "--report", "report.json", "--on-alarm", "skip", "train.py"))
    assert sorted(got.out.splitlines()) == [f"child {i} True" for i in range(4)], got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun"]) == (3, "rewind", "persistent"), got.text()
    assert "loss * NAN" in alarm["births"][0]["source"]


@pytest.mark.thorough  # with a process group: test_ranks_that_a_script_starts_itself
def test_torch_multiprocessing_spawn_ends_as_it_would(tmp_path):
    write_script(
        tmp_path,
        TRAINING
        + PROCESSES
        + """
if __name__ == "__main__":
    mp.spawn(train, args=(1,), nprocs=2)
""",
    )
    got = checked(finitude(tmp_path, "run", "--report", "report.json", "train.py"))
    assert got.code == 1 and "ProcessRaisedException" in got.err and "NonFiniteError: step 3" in got.err, got.text()
    assert got.the_alarm()["step"] == 3


def test_child_that_checks_its_own_loss_is_explained(tmp_path):
    write_script(
        tmp_path,
        loop(5).replace("    loss.backward()", "    assert loss.isfinite(), 'loss is nan'\n    loss.backward()"),
    )
    got = cold(tmp_path, sys.executable, "-u", "train.py")
    assert got.code == 1 and "AssertionError: loss is nan" in got.err, got.text()
    alarm = got.the_alarm()
    assert "raised AssertionError" in alarm["text"] and "loss * NAN" in alarm["births"][0]["source"], alarm


def test_child_that_calls_sys_exit_is_explained(tmp_path):
    write_script(tmp_path, loop(5).replace("    opt.step()", "    if loss.isnan(): sys.exit(3)\n    opt.step()"))
    got = cold(tmp_path, sys.executable, "-u", "train.py")
    assert got.code == 3, got.text()
    assert "raised SystemExit" in got.the_alarm()["text"] and got.alarms[0]["births"], got.alarms


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_are_not_watched(tmp_path, method):
    write_script(
        tmp_path,
        TRAINING
        + f"""
import os, sys
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        import torch.autograd
        cold = sys.modules.get("finitude.session.native_callbacks")
        native = sys.modules.get("finitude._native")
        watched = cold is not None and cold.session is not None or native is not None and native.is_on()
        return torch.randn(4), float(watched), float(native is not None), float(os.getpid())
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="{method}")
    for x, watched, native, pids in loader:
        opt.zero_grad()
        loss_of(x).backward()
        opt.step()
        print(watched.sum().item(), native.sum().item(), os.getpid() in pids)
""",
    )
    got = checked(finitude(tmp_path, "run", "--report", "report.json", "train.py"))
    native = "4.0" if method == "fork" else "0.0"  # a forked worker has what its parent had loaded
    assert (got.code, got.out) == (0, f"0.0 {native} False\n" * 2), got.text()
    got.assert_silent()
    assert made(tmp_path) == {}


def test_finitude_run_inside_watched_program_is_independent(tmp_path):
    write_script(tmp_path, loop())
    got = cold(tmp_path, "sh", "-c", f"{sys.executable} -m finitude run --report inner.json --runs inner train.py")
    assert (got.code, got.out, got.report["outcome"]) == (0, "ended 11 True\n", "unwatched"), got.text()
    assert json.loads((tmp_path / "inner.json").read_text())["watched"]["steps"] == 12
    assert len(list((tmp_path / "inner").iterdir())) == 1
