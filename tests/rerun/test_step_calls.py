"""What is given to `step` or to finitude.step is called once more to explain a bad step; nothing else moves."""

import textwrap

import pytest

from helpers import run

HEAD = """
import logging
import finitude
import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
batches = [torch.randn(8, 4) for _ in range(8)]
batches[BAD][5] = 0
calls = []
logging.basicConfig(filename="calls.log", level=logging.INFO, format="%(message)s")


def loss_of(x):
    return model(x / x.norm(dim=1, keepdim=True)).pow(2).mean()


def training_step(x):
    calls.append(len(calls))
    logging.info("call")
    print("call", len(calls), flush=True)
    optimizer.zero_grad()
    loss = loss_of(x)
    loss.backward()
    return loss
"""
BIRTH = "return model(x / x.norm(dim=1, keepdim=True)).pow(2).mean()"

LOOPS = {
    "closure_of_step": """
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for x in batches:
            optimizer.step(lambda: training_step(x))
        """,
    "finitude_step": """
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for x in batches:
            finitude.step(lambda: training_step(x))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        """,
    # The step is inside of what is called.
    "finitude_step_and_all": """
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

        def whole(x):
            training_step(x)
            optimizer.step()

        for x in batches:
            finitude.step(lambda: whole(x))
        """,
    "scaled": """
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

        def scaled(x):
            calls.append(len(calls))
            logging.info("call")
            print("call", len(calls), flush=True)
            optimizer.zero_grad()
            scaler.scale(loss_of(x)).backward()

        for x in batches:
            finitude.step(lambda: scaled(x))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        """,
    "lbfgs": """
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=3)
        model.eval()
        for x in batches:
            optimizer.step(lambda: training_step(x))
        """,
}


def program(name, bad):
    return HEAD.replace("BAD", str(bad), 1) + textwrap.dedent(LOOPS[name])


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("bad", [0, 5])
def test_a_bad_step_is_called_again(tmp_path, name, bad):
    got = run(tmp_path, program(name, bad))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["weights"]) == (bad, "clean"), got.text()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("closure", True), alarm["rerun_text"]
    assert alarm["births"][0]["source"] == BIRTH and alarm["cause"]["class"] == "division-by-zero"
    assert all(b["phase"] != "data" for b in alarm["births"]), alarm[
        "births"
    ]  # as a norm that clipping has of the first run
    # The second call printed, logged and counted nothing.
    printed = [line for line in got.out.splitlines() if line.startswith("call")]
    assert printed == [f"call {i + 1}" for i in range(len(printed))], got.out
    assert (tmp_path / "calls.log").read_text().count("call") == len(printed)
    assert name == "lbfgs" or len(printed) == bad + 1


def test_loop_continues_after_skip_as_if_called_once(tmp_path):
    text = (
        program("finitude_step", 3)
        + "print(calls, [int(m.num_batches_tracked) for m in model if hasattr(m, 'num_batches_tracked')])\n"
    )
    got = run(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0 and got.the_alarm()["rerun_by"] == "closure", got.text()
    # A vetoed step's batch does not count in the running statistics.
    assert got.out.splitlines()[-1] == f"{list(range(8))} [7]", got.text()


def test_batch_changed_in_place_is_not_the_same(tmp_path):
    text = HEAD.replace("BAD", "5", 1) + textwrap.dedent("""
        from finitude.session import native_callbacks

        def changes(x):
            x.add_(1.0).sub_(1.0)
            training_step(x)

        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for x in batches:
            native_callbacks.session.units.call(changes, (x,))   # as for a framework: what it is given can be looked at
            optimizer.step()
        """)
    alarm = run(tmp_path, text).the_alarm()
    assert alarm["rerun_by"] != "closure" and "changed in place" in alarm["rerun_text"], alarm["rerun_text"]


def test_raising_unit_is_explained_before_teardown(tmp_path):
    text = program("finitude_step", 5).replace(
        "    loss.backward()\n", "    if not loss.isfinite():\n        raise ValueError('bad')\n    loss.backward()\n"
    )
    got = run(tmp_path, text)
    alarm = got.the_alarm()
    assert got.code == 1 and "ValueError: bad" in got.err and alarm["action"] == "the script's own exception"
    assert (alarm["step"], alarm["rerun_by"]) == (5, "closure") and alarm["births"][0]["source"] == BIRTH, alarm[
        "rerun_text"
    ]


def test_diverging_second_call_is_reported(tmp_path):
    """It depends on something that no snapshot holds: a file."""
    text = program("finitude_step", 5).replace(
        "    loss = loss_of(x)\n",
        """
    import os
    loss = loss_of(x if not os.path.exists("once") else x + 1)
    if len(calls) == 6:
        open("once", "w").close()
""",
    )
    got = run(tmp_path, text)
    alarm = got.the_alarm()
    assert (
        alarm["rerun_by"] != "closure" and "closure: loss or gradients came out with other bits" in alarm["rerun_text"]
    )


@pytest.mark.parametrize("draws", [False, True])
def test_first_step_drawing_from_own_generator_is_restarted(tmp_path, draws):
    """It is known once an optimizer has stepped: where the first step's second call draws from it, it began
    elsewhere."""
    loop = """
own = torch.Generator()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for i in torch.randperm(8, generator=own).tolist():
    finitude.step(lambda: training_step(batches[i] DRAWN))
    optimizer.step()
"""
    text = HEAD.replace("batches[BAD][5] = 0", "for batch in batches: batch[5] = 0") + loop.replace(
        "DRAWN", "* (1 + 0 * torch.rand(1, generator=own))" if draws else ""
    )
    alarm = run(tmp_path, text, "--on-alarm", "skip", "--max-skips", "20").alarms[0]
    assert (alarm["step"], alarm["rerun_by"]) == (0, "restart" if draws else "closure"), alarm["rerun_text"]
    assert ("other random numbers were drawn" in alarm["rerun_text"]) == draws


def test_clipping_in_second_call_uses_its_own_norm(tmp_path):
    """Not that of the first, which is NaN: a step that is finite eagerly would be called bad again."""
    got = run(
        tmp_path,
        HEAD.replace("batches[BAD][5] = 0", "at = [0]")
        + textwrap.dedent("""
        def backend(graph, inputs):
            return lambda *a: tuple(out * (float("nan") if at[0] == 3 else 1.0) for out in graph(*a))

        scale = torch.compile(lambda x: x * 2, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

        def scaled(x):
            optimizer.zero_grad()
            scale(model(x)).pow(2).mean().backward()

        for at[0], x in enumerate(batches):
            finitude.step(lambda: scaled(x))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    """),
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun"]) == (3, "closure", "order-dependent"), got.text()
    assert "only when compiled" in alarm["rerun_text"], alarm["rerun_text"]


def test_data_given_to_the_unit_is_named(tmp_path):
    got = run(
        tmp_path,
        """
        import torch
        from finitude.session import native_callbacks
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def training_step(batch):
            p = model(batch["x"]).log_softmax(-1).exp()
            kept = torch.nan_to_num(p * (p - batch["teacher"]), posinf=0.0)  # here
            kept.sum().backward()

        for step in range(4):
            teacher = torch.randn(6, 3)
            if step == 2:
                teacher[4] = -torch.inf
            opt.zero_grad()
            native_callbacks.session.units.call(training_step, ({"x": torch.randn(6, 4), "teacher": teacher},))  # as from a framework's hook
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["cause"]["class"]) == (2, "closure", "zero-times-infinity"), (
        got.text()
    )
    assert "the infinities come with batch[teacher]; aten::nan_to_num at train.py:" in alarm["cause"]["text"]
    assert alarm["births"][0]["source"].endswith("# here") and alarm["births"][0]["phase"] == "backward"
