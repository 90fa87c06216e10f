"""The gate for gradients on a device, on a make-believe one: what is skipped where, who waits, what is reported when."""

import sys

import pytest

from device_programs import FUSED, OTHERS, TWO_CLIPS, on_device, steps
from device_support import ON_DEVICE

# Trains; at step 3 one gradient is bad. Then again from the start, with `continue` in that place.
TWICE = """
def train(skip_it):
    global model
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    opt = OPTIMIZER
    for i, x in enumerate(batches):
        loss = loss_of(x)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        if i == 3:
            if skip_it:
                continue
            model[2].bias.grad[1] = NAN
        opt.step()
    return opt, model, bits(opt)
hold(HOLD)
first = train(False)
asked = counts()
hold(0)
watched, plain = first[2], train(True)[2]
print("same", watched == plain, "waits", asked["waits"], "scans", asked["scans"], "uploads", asked["uploads"])
"""


def words(result):
    line = next(line for line in result.out.splitlines() if line.startswith("same"))
    parts = line.split()
    return parts[1] == "True", dict(zip(parts[2::2], map(int, parts[3::2])))


@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_are_skipped_on_device_without_waiting(tmp_path, library, name):
    body = TWICE.replace("OPTIMIZER", FUSED[name]).replace("HOLD", "1")
    result = on_device(library, tmp_path, body)
    same, asked = words(result)
    assert same, result.text()
    # The first step has no state to fall back on, but for these: it waits as any other optimizer does.
    assert asked["waits"] == (0 if name in ("SGD", "Adagrad") else 1), result.text()
    assert asked["scans"] == 10
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["sink"]) == (3, "clean", {"kind": "gradient", "name": "2.bias"}), (
        result.text()
    )
    assert alarm["action"] == "the step was skipped"


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_wait_once_and_are_vetoed(tmp_path, library, name):
    result = on_device(library, tmp_path, TWICE.replace("OPTIMIZER", OTHERS[name]).replace("HOLD", "1"))
    same, asked = words(result)
    assert same, result.text()
    assert asked["waits"] == 11 and asked["scans"] == 11  # once for each step, and for the one that ran again
    assert result.the_alarm()["step"] == 3 and result.the_alarm()["sink"]["name"] == "2.bias", result.text()


def test_the_table_is_sent_once_while_addresses_stay(tmp_path, library):
    result = on_device(library, tmp_path, TWICE.replace("OPTIMIZER", FUSED["AdamW"]).replace("HOLD", "0"))
    assert words(result)[1]["uploads"] == 1, result.text()


@pytest.mark.parametrize("policy", ["stop", "raise"])
def test_stop_and_raise_act_at_the_next_step(tmp_path, library, policy):
    result = on_device(library, tmp_path, steps(gradient=4), "--on-alarm", policy)
    assert "left out True\nraised at 5 NonFiniteError True" in result.out, result.text()
    assert result.the_alarm()["step"] == 4 and result.the_alarm()["weights"] == "clean"


def test_pending_verdict_is_reported_at_exit(tmp_path, library):
    result = on_device(library, tmp_path, "hold(1)\n" + steps(gradient=9), "--on-alarm", "stop")
    assert "left out True" in result.out and result.the_alarm()["step"] == 9, result.text()


def test_bad_step_of_deleted_optimizer_is_reported(tmp_path, library):
    body = "hold(1)\ndef train():\n" + "".join(f"    {line}\n" for line in steps(gradient=9).splitlines()) + "train()\n"
    result = on_device(library, tmp_path, body, "--on-alarm", "stop")
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["optimizer"], alarm["sink"]["name"]) == (9, "AdamW", "parameter 0"), result.text()


def test_a_verdict_may_be_several_steps_late(tmp_path, library):
    body = "hold(1)\n" + steps(gradient=2).replace("    opt.zero_grad()", "    if i == 6: hold(0)\n    opt.zero_grad()")
    result = on_device(library, tmp_path, body, "--on-alarm", "raise")
    assert "raised at 6" in result.out and result.the_alarm()["step"] == 2, result.text()


ACCUMULATED = """
opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
hold(1)
for i in range(14):
    opt.zero_grad()
    for x in batches:
        loss_of(x).backward()
    if i == 3:
        model[2].weight.grad[0, 0] = INF
    opt.step()
"""


def test_many_pending_losses_lose_no_verdict(tmp_path, library):
    # 14 steps of ten losses: more than the ring has places.
    result = on_device(library, tmp_path, ACCUMULATED)
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["sink"]["name"]) == (3, "clean", "2.weight"), result.text()
    assert not result.watched["not_watched"] and result.watched["gradients_scanned"] == 14 * 4, result.text()


WAITS = """
import threading, time
opt = torch.optim.RMSprop(model.parameters(), lr=0.01)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss_of(x).backward()
    if i == 3:
        hold(2)
        threading.Thread(target=lambda: (time.sleep(0.1), hold(0))).start()
    opt.step()
print("went on")
"""


def test_other_threads_run_while_the_host_waits(tmp_path, library):
    result = on_device(library, tmp_path, WAITS)  # else the thread never lets the device go on
    result.assert_silent()
    assert "went on" in result.out and result.watched["steps"] == 10


def test_hanging_device_does_not_block_the_program(tmp_path, library):
    body = steps(gradient=9).replace("loss = loss_of", "hold(2 if i == 9 else 0); loss = loss_of")
    result = on_device(
        library,
        tmp_path,
        "import finitude.alarms.deferred_verdict\nfinitude.alarms.deferred_verdict.LIMIT_S = 0.2\n" + body,
    )
    assert result.code == 0 and not result.alarms, result.text()
    assert "the verdicts of the last 1 steps on the GPU, which did not come within 0.2 s" in result.err.replace(
        "\n", " "
    ), result.text()


def test_warn_applies_the_step_and_never_waits(tmp_path, library):
    # The last step: the parameters of this device can be read, and the next step would find them damaged.
    result = on_device(
        library, tmp_path, "hold(1)\n" + steps(gradient=9) + "print('waits', counts()['waits'])", "--on-alarm", "warn"
    )
    assert "left out False" in result.out and "waits 0" in result.out, result.text()
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["sink"]["name"]) == (9, "damaged", "0.weight"), result.text()


def test_healthy_run_is_silent_and_waits_only_once(tmp_path, library):
    result = on_device(library, tmp_path, "hold(1)\n" + steps() + "print('waits', counts()['waits'])")
    result.assert_silent()
    assert "waits 1" in result.out and result.watched["steps"] == 10, result.text()


def test_a_bad_loss_of_finite_gradients_is_harmless(tmp_path, library):
    body = steps(loss=4).replace(
        "loss.backward()",
        "(loss_of(x) if i == 4 else loss).backward() if i != 4 else "
        "torch.autograd.backward([loss_of(x), loss.detach().requires_grad_()])",
    )
    result = on_device(library, tmp_path, body, "--on-alarm", "stop")
    alarm = result.the_alarm()
    assert (alarm["harmless"], alarm["step"], alarm["sink"]["kind"], alarm["action"]) == (
        True,
        4,
        "loss",
        "reported, the step is applied",
    ), result.text()
    result = on_device(library, tmp_path, body, "--on-alarm", "skip")
    assert result.the_alarm()["action"] == "the step was skipped", result.text()


def test_single_rank_of_several_skips_no_step(tmp_path, library):
    alone = "import finitude.program.ranks\nfinitude.program.ranks.world = lambda: (0, 2)\n"
    result = on_device(library, tmp_path, alone + steps(gradient=4), "--on-alarm", "skip")
    assert "raised at 5 NonFiniteError True" in result.out, result.text()
    assert result.the_alarm()["action"] == "stopped" and "other ranks may not see it" in result.the_alarm()["text"]
    result = on_device(
        library, tmp_path, alone + TWO_CLIPS.replace("torch.nn.utils", "0 and torch.nn.utils"), "--on-alarm", "skip"
    )
    assert "left out" not in result.out and result.the_alarm()["action"] == "reported, the step is applied", (
        result.text()
    )
    assert result.the_alarm()["harmless"] and result.the_alarm()["weights"] == "clean"


LAYOUTS = """
p = nn.Parameter(torch.zeros(6, 4))
opt = torch.optim.SGD([p], lr=0.1)
p.grad = torch.ones(6, 4)
opt.step()
GRADIENT
opt.step()
print("finite", bool(torch.isfinite(p).all()), counts()["scans"])
"""


@pytest.mark.parametrize(
    "gradient",
    [
        "p.grad = torch.ones(4, 6).t(); p.grad[5, 3] = NAN",  # dense, permuted
        "p.grad = torch.tensor([1.0, 2.0, NAN, 3.0]).expand(6, 4)",  # each element many times
        "p.grad = torch.ones(25)[1:].view(6, 4); p.grad[5, 3] = INF",  # not aligned to a vector
        "p.grad = torch.sparse_coo_tensor([[2]], [[1.0, NAN, 1.0, 1.0]], (6, 4))",
    ],
)
def test_gradients_of_any_layout(tmp_path, library, gradient):
    result = on_device(library, tmp_path, LAYOUTS.replace("GRADIENT", gradient))
    scans = (
        3 if sys.version_info >= (3, 11) else 2
    )  # two steps, and one of them again: elsewhere, where frames cannot be moved
    assert result.the_alarm()["step"] == 1 and f"finite True {scans}" in result.out, result.text()


def test_memory_that_is_no_gradient_is_not_judged(tmp_path, library):
    gradient = "base = torch.full((6, 8), NAN); base[:, :4] = 1.0; p.grad = base[:, :4]"
    result = on_device(library, tmp_path, LAYOUTS.replace("GRADIENT", gradient))
    assert not result.alarms and "memory has gaps" in result.err, result.text()


def test_a_capture_is_left_alone_and_said_once(tmp_path, library):
    result = on_device(library, tmp_path, "capture(1)\n" + steps(gradient=9), "--on-alarm", "raise")
    assert result.code == 0 and not result.alarms, result.text()
    assert result.err.count("captured into a CUDA graph") == 1, result.text()
    assert "flag False" in result.out


def test_failing_library_is_reported_once_and_training_continues(tmp_path, library):
    body = steps().replace("    opt.zero_grad()", "    fail(i >= 3)\n    opt.zero_grad()")
    result = on_device(library, tmp_path, body)
    assert result.code == 0 and result.report["outcome"] == "clean", result.text()
    assert result.err.count("failure requested") == 1 and "flag False" in result.out, result.text()


def test_the_flag_is_gone_when_nobody_watches(tmp_path, library):
    body = """
import finitude
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
with finitude.watch(model, opt, on_alarm="skip"):
    for x in batches[:4]:
        opt.zero_grad(); loss_of(x).backward(); opt.step()
    inside = "found_inf" in opt.__dict__
print("flag", inside, "found_inf" in opt.__dict__)
loss_of(batches[0]).backward()
model[0].weight.grad[0, 0] = NAN
opt.step()
print("applied", bool(model[0].weight.isnan().any()))
"""
    from helpers import plain, write_script

    script = write_script(tmp_path, ON_DEVICE.format(library=library) + body)
    result = plain(tmp_path, script.name)
    assert "flag True False" in result.out and "applied True" in result.out, result.text()


def test_a_missing_library_is_one_line(tmp_path, library):
    import torch  # noqa: F401  the engine's libraries

    from finitude import _native

    assert "not there" in _native.open_device_library(str(tmp_path / "none.so"), "cuda")
    (tmp_path / "wrong.so").write_bytes(b"no library")
    why = _native.open_device_library(str(tmp_path / "wrong.so"), "cuda")
    assert why.startswith("cannot load") and "\n" not in why and not _native.has_device_library()
