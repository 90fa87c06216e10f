"""What a step costs with every op observed, beside the same step unwatched. Run as a program, it measures."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def time_steps(runs):
    """Medians of the same step, unwatched and with every op observed, taken in turns: of the thread's own time (one
    thread does all the work), so that what else runs on the machine does not count."""
    import torch
    from torch import nn

    import finitude
    from finitude import _native

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(16, 32, 64)

    def median(count=12):
        times = []
        for _ in range(count):
            began = time.thread_time()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            times.append(time.thread_time() - began)
        return statistics.median(times[2:])

    median()
    plain, traced = [], []
    for _ in range(3):
        plain.append(median())
        with finitude.watch(model, optimizer, level="trace", runs=runs):
            traced.append(median())
            assert _native.trace_on()
    return {"plain": min(plain), "traced": min(traced)}


def effort(runs, foreach):
    """(ops, bytes read, bytes copied) of one step of Adam over 64 parameters, traced."""
    import torch
    from torch import nn

    import finitude
    from finitude import _native

    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(32)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=foreach)
    x = torch.randn(4, 64)
    with finitude.watch(model, optimizer, level="trace", runs=runs):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            before = _native.trace_effort()
            optimizer.step()
        return [now - then for then, now in zip(before, _native.trace_effort())]


def measured(folder):
    import helpers

    done = subprocess.run(
        [*helpers.warm_python(), os.path.abspath(__file__)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_armed_step_costs_at_most_three_plain_ones(tmp_path):
    found = measured(tmp_path)
    assert found["traced"] <= 3 * found["plain"], found
    one_set = 64 * 64 * 4 * 32
    (_, read, copied), (_, read_singly, copied_singly) = found["lists"], found["one by one"]
    assert one_set < read <= 1.05 * read_singly, found
    assert copied < one_set and copied_singly < one_set, found  # nothing bad can come of these steps: ranges prove it


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    with tempfile.TemporaryDirectory() as folder:
        found = time_steps(folder)
        found.update({"lists": effort(folder, True), "one by one": effort(folder, False)})
    print(json.dumps(found))
