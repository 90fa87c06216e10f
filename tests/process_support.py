"""Helps the tests of programs that start others."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys

import jsonschema

from helpers import LIMIT, TRAINING, environment, finitude, plain, python_of_ranks, write_script

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "report.schema.json").read_text()))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")

# What a launcher comes to for the processes that it starts, without an import of torch in the launcher: their
# environment, and an end of all where one fails. torchrun itself is what test_ranks_under_torchrun_train_as_without_us,
# the stop and the single rank of tests/ranks, and tests/compatibility run. PYTHON: what begins the command of a rank.
LAUNCHER = """
import os, socket, subprocess, sys, time
count, words = int(sys.argv[1]), sys.argv[2:]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
ranks = []
for rank in range(count):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **{k: str(v) for k, v in place.items()}}
    ranks.append(subprocess.Popen([*PYTHON, *words], env=env))
while None in (codes := [p.poll() for p in ranks]) and not any(codes):
    time.sleep(0.02)
for p in ranks if any(codes) else ():
    p.terminate()
for p in ranks:
    try:
        p.wait(30)
    except subprocess.TimeoutExpired:
        p.kill()
sys.exit(1 if any(p.wait() for p in ranks) else 0)
"""


def launcher(folder, ranks, is_cold=True):
    """The words that start `ranks` processes of the program whose words follow them. Cold ones are interpreters of their
    own, others are forked from a server that has imported what takes most of their time."""
    text = LAUNCHER.replace("PYTHON", repr([sys.executable] if is_cold else python_of_ranks()))
    return sys.executable, "-u", write_script(folder, text, "launch.py").name, str(ranks)


LOOP = (
    TRAINING
    + """
import sys
for i, x in enumerate(batches * 2):
    opt.zero_grad()
    loss = loss_of(x)
    if i == BAD: loss = loss * NAN
    loss.backward()
    opt.step()
print("ended", i, finite(), *sys.argv[1:], flush=True)
"""
)


def loop(bad=-1):
    return LOOP.replace("BAD", str(bad))


def lost_its_port(err):
    """torchrun looks for a free port, lets go of it and hands the number on: until it is bound again anybody may take
    it (torch.distributed.elastic.utils.distributed.get_free_port says so itself)."""
    return "EADDRINUSE" in err or "address already in use" in err.lower()


def torchrun(folder, text, *options):
    """`finitude run` of two ranks by torchrun; once more where it has lost its port."""
    write_script(folder, text)
    words = *options, *TORCHRUN, "2", "train.py"
    got = cold(folder, *words, limit=3 * LIMIT)
    if got.code != 0 and lost_its_port(got.err):
        shutil.rmtree(folder / "finitude-runs", ignore_errors=True)
        got = cold(folder, *words, limit=3 * LIMIT)
    return got


def launched(folder, text, *options):
    """Two ranks of the program `text`, started by that launcher under `finitude run`."""
    write_script(folder, text)
    return watched_ranks(folder, *options, *warm_launcher(folder), "train.py")


def warm_launcher(folder, ranks=2):
    return launcher(folder, ranks, is_cold=False)


def watched_ranks(folder, *words, env=None, limit=3 * LIMIT):
    """`finitude run --report report.json *words`, where the words begin with those of warm_launcher: `finitude run` is
    forked as its ranks are."""
    return cold(folder, *words, env=env, limit=limit, python=python_of_ranks())


def plain_ranks(folder, *words, ranks=2):
    """The same without us."""
    return plain(folder, *warm_launcher(folder, ranks)[1:], *words, limit=3 * LIMIT)


def cold(folder, *words, env=None, limit=LIMIT, python=(sys.executable,)):
    """`finitude run --report report.json *words` in an interpreter of its own, and a report that fits the schema."""
    words = "run", "--report", "report.json", *map(str, words)
    return checked(finitude(folder, *words, env=env, cold=True, limit=limit, python=python))


def checked(got):
    assert got.report is not None, got.text()
    assert [f"{e.json_path}: {e.message}" for e in SCHEMA.iter_errors(got.report)] == []
    return got


def made(folder):
    """What lies below the directory of the only run, e.g. {"rank-0": [...], ...}; {} where there is none."""
    runs = list(pathlib.Path(folder).glob("finitude-runs/*"))
    assert len(runs) <= 1, runs
    return {p.name: sorted(f.name for f in p.iterdir()) for p in runs[0].iterdir() if p.is_dir()} if runs else {}


def started(folder, *words, env=None):
    """`finitude run *words`, started and left running."""
    return subprocess.Popen(
        [sys.executable, "-m", "finitude", "run", "--report", "report.json", *words],
        cwd=folder,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_signals,
    )


def hears_signals():
    """Also where the tests run in the background or under nohup, which leave these two ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
