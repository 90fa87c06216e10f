"""run.json: what a run was made of, so that it can be made again."""

import json
import sqlite3
import subprocess
import types

import torch

from finitude.base import git
from finitude.report import run_facts
from helpers import run

TRAINS = """
import torch
model = torch.nn.Linear(4, 1)
opt = torch.optim.AdamW(model.parameters(), lr=0.125, betas=(0.5, 0.75))
for _ in range(2):
    opt.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    opt.step()
"""


def started(folder):
    (path,) = folder.glob("finitude-runs/*/run.json")
    return json.loads(path.read_text())


def stored(folder):
    (path,) = folder.glob("finitude-runs/*/store.sqlite")
    return dict(sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("SELECT key, value FROM info"))


def test_run_json_says_where_a_run_comes_from(tmp_path):
    names = {"MY_SEED": "7", "MY_API_KEY": "hunter2", "OTHER": "1", "OMP_NUM_THREADS": "1"}
    names |= {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "1"}
    result = run(tmp_path, TRAINS, "--record-env", "MY_SEED,MY_API_KEY", env=names)
    assert result.code == 0, result.text()
    facts = started(tmp_path)
    assert facts["packages"]["torch"].startswith(torch.__version__.partition("+")[0])
    env = facts["environment"]
    assert (env["MY_SEED"], env["MY_API_KEY"], env["OMP_NUM_THREADS"]) == ("7", "***", "1") and "OTHER" not in env
    assert facts["git"] is None and facts["cwd"] == str(tmp_path)
    job = {"slurm_job": "4711", "slurm_restarts": "2", "elastic_restarts": "1"}
    assert facts["job"] == job and job.items() <= stored(tmp_path).items()
    (optimizer,) = facts["optimizers"]
    (group,) = optimizer["groups"]
    assert (optimizer["class"], group["lr"], group["betas"], group["parameters"]) == ("AdamW", 0.125, [0.5, 0.75], 2)


DATA = """
from torch.utils.data import DataLoader, TensorDataset
class Rows(TensorDataset):
    def __getitem__(self, row):
        print("row", row)
        return super().__getitem__(row)
    def __len__(self): return 6
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): yield from range(3)
train, other = DataLoader(Rows(torch.ones(6, 2)), batch_size=3, shuffle=True), DataLoader(Stream(), batch_size=2)
model(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


def test_data_sets_are_named_without_reading_rows(tmp_path):
    result = run(tmp_path, "import torch\nmodel = torch.nn.Linear(4, 2)" + DATA)
    assert result.code == 0 and result.out == "", result.text()
    rows = {"class": "Rows", "length": 6, "sampler": "RandomSampler", "batch_size": 3, "drop_last": False, "workers": 0}
    found = {one["class"]: one for one in started(tmp_path)["data"]}
    assert found["Rows"] == rows and (found["Stream"]["length"], found["Stream"]["batch_size"]) == (None, 2)


def test_redacted_run_json_names_no_environment(tmp_path):
    result = run(tmp_path, TRAINS, "--redact", env={"SLURM_JOB_ID": "4711"})
    assert result.code == 0, result.text()
    assert not {"environment", "packages", "git", "cwd", "job"} & set(started(tmp_path))
    assert "slurm_job" not in stored(tmp_path)


def run_git(folder, *words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commit_is_what_git_says(tmp_path):
    assert git.head("/") is None
    run_git(tmp_path, "init", "-q")
    assert git.head(str(tmp_path))["commit"] is None  # nothing is committed
    run_git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    sha = run_git(tmp_path, "rev-parse", "HEAD")
    assert git.head(str(inner))["commit"] == sha
    run_git(tmp_path, "pack-refs", "--all")
    assert git.head(str(tmp_path))["commit"] == sha
    run_git(tmp_path, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert git.head(str(tmp_path / "tree"))["commit"] == sha
    run_git(tmp_path, "checkout", "-q", "--detach")
    assert git.head(str(tmp_path))["commit"] == sha


def test_hyper_parameters_are_plain_and_bounded():
    group = {"params": [1, 2], "lr": torch.tensor(1.0), "name": "a" * 9000, "flags": [0] * 99, "eps": None}
    optimizer = types.SimpleNamespace(param_groups=[group] * 50)
    found = run_facts.hyper_parameters(optimizer)
    assert len(found["groups"]) == run_facts.MOST_GROUPS
    assert found["groups"][0] == {"name": "a" * run_facts.MOST_TEXT, "eps": None, "parameters": 2}


def test_packages_are_the_folders_of_pip(tmp_path):
    for name in ("My_Lib-1.2.dist-info", "other-3.0+cpu.dist-info", "noversion.dist-info", "x-1.egg-info"):
        (tmp_path / name).mkdir()
    found = run_facts.packages([str(tmp_path), str(tmp_path / "not there")])
    assert found == {"my-lib": "1.2", "other": "3.0+cpu"}
