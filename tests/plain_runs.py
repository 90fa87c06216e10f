"""Runs scripts as plain Python would, one after the other: what a watched run is compared with.

Importing torch takes seconds, so one process imports it once and forks a child for each script.
"""

import json
import os
import pathlib
import subprocess
import sys


def plain_runs(folder, jobs):
    """{name: [script, argument ...]} run in `folder`; returns {name: (exit code, stdout)}."""
    folder = pathlib.Path(folder)
    orders = {name: [str(word) for word in words] for name, words in jobs.items()}
    subprocess.run(
        [sys.executable, os.path.abspath(__file__), str(folder)],
        input=json.dumps(orders),
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    codes = json.loads((folder / "plain.json").read_text())
    return {name: (codes[name], (folder / f"plain-{i}.out").read_text()) for i, name in enumerate(orders)}


def _child(folder, number, words):
    import runpy

    out = os.open(folder / f"plain-{number}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    code = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as e:
        code = e.code or 0
    except BaseException:
        code = 1
    sys.stdout.flush()
    os._exit(code)


def _main():
    import torch  # noqa: F401
    import torch._dynamo  # noqa: F401  optimizers pull it in

    folder = pathlib.Path(sys.argv[1])
    os.chdir(folder)
    codes = {}
    for number, (name, words) in enumerate(json.load(sys.stdin).items()):
        pid = os.fork()
        if pid == 0:
            _child(folder, number, words)
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    (folder / "plain.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    _main()
