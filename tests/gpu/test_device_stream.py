"""Gradients read while backward still makes others, on the make-believe device: as early and as late as the order of
its streams allows."""

import pytest

from device_support import ON_DEVICE
from helpers import run


def streamed(library, folder, body, lazy=0, batch=64, options=("--on-alarm", "skip", "--stream-gradients", "on")):
    head = ON_DEVICE.format(library=library) + f"_native.set_stream_batch({batch})\nlazy({lazy})\n"
    return run(folder, head + body, *options)


# A deeper model: 12 gradients of 16 to 256 bytes. `poison`: a gradient turns bad inside of backward.
MODEL = """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(),
                      nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
poison = {}
def keep_watch(name, p):
    p.register_hook(lambda g: g * NAN if name in poison else g)
for name, p in model.named_parameters():
    keep_watch(name, p)
"""

TRAIN = (
    MODEL
    + """
def train(skip_it):
    for i, p in enumerate(model.parameters()):
        torch.manual_seed(i)
        nn.init.normal_(p, std=0.3)
    opt = OPTIMIZER
    for i, x in enumerate(batches):
        opt.zero_grad(set_to_none=i % 2 == 0)
        poison.clear()
        if i == 5 and not skip_it:
            poison["4.weight"] = True
        if i == 5 and skip_it:
            continue
        loss_of(x).backward()
        BETWEEN
        opt.step()
    return bits(opt), opt
watched, opt = train(False)
counted = ahead()
print("same", watched == train(True)[0], "ahead", counted["ahead"], "scanned", counted["scanned"], "calls", counted["calls"])
"""
)

OPTIMIZERS = {
    "AdamW": "torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)",
    "SGD": "torch.optim.SGD(model.parameters(), lr=0.05, fused=True)",
    "RMSprop": "torch.optim.RMSprop(model.parameters(), lr=0.01)",
}


def numbers(result):
    words = next(line for line in result.out.splitlines() if line.startswith("same")).split()
    return words[1] == "True", {k: int(v) for k, v in zip(words[2::2], words[3::2])}


@pytest.mark.parametrize("lazy", [0, 1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_read_ahead_are_part_of_the_verdict(tmp_path, library, name, lazy):
    result = streamed(library, tmp_path, TRAIN.replace("OPTIMIZER", OPTIMIZERS[name]).replace("BETWEEN", "pass"), lazy)
    same, n = numbers(result)
    assert same, result.text()
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"]) == (5, "clean"), result.text()
    assert alarm["sink"] == {"kind": "gradient", "name": "4.weight"}, result.text()
    assert [g["name"] for g in alarm["gradients"]["bad"]] == ["4.weight"], result.text()
    # Ten steps of 12 gradients, each read once: all in the first step, which is not known to be the end of a window by
    # then.
    again = 12 if alarm["rerun_by"] == "rewind" else 0  # where the host waited, the bad step ran once more
    assert n["ahead"] + n["scanned"] == 120 + again and n["ahead"] >= 90, result.text()
    assert result.watched["gradients_scanned"] == 2 * 120 - 12, result.text()


@pytest.mark.parametrize("lazy", [0, 1])
def test_what_is_written_after_backward_is_read_again(tmp_path, library, lazy):
    between = "model[8].bias.grad.mul_(INF) if i == 7 else None"
    result = streamed(
        library, tmp_path, TRAIN.replace("OPTIMIZER", OPTIMIZERS["AdamW"]).replace("BETWEEN", between), lazy
    )
    found = [(a["step"], a["sink"]["name"]) for a in result.alarms]
    assert found[:2] == [(5, "4.weight"), (7, "8.bias")], result.text()


@pytest.mark.parametrize("lazy", [0, 1])
def test_replaced_bad_gradient_is_judged_by_new_value(tmp_path, library, lazy):
    between = "p = model[4].weight; p.grad = torch.nan_to_num(p.grad)"
    result = streamed(
        library, tmp_path, TRAIN.replace("OPTIMIZER", OPTIMIZERS["AdamW"]).replace("BETWEEN", between), lazy
    )
    assert not result.alarms, result.text()


LEFT_ALONE = (
    MODEL
    + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
read = []
for i in range(40):
    opt.zero_grad()
    for _ in range(MICRO):
        loss_of(batches[i % 10]).backward()
        read.append(ahead()["ahead"])
    WRITE
    opt.step()
print("read", read)
"""
)


def read_of(result):
    return eval(next(line for line in result.out.splitlines() if line.startswith("read"))[5:])


def test_only_the_last_micro_batch_is_read(tmp_path, library):
    result = streamed(library, tmp_path, LEFT_ALONE.replace("MICRO", "3").replace("WRITE", "pass"))
    read = read_of(result)
    assert read[:3] == [0, 0, 0] and read[3:].count(0) == 2 * 39 and min(read[5::3]) >= 10, result.text()
    result.assert_silent()


@pytest.mark.parametrize(
    "write",
    [
        "[p.grad.mul_(0.5) for p in model.parameters()]",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "torch.nn.utils.clip_grad_value_(model.parameters(), 1e9)",
    ],
)
def test_reads_that_are_of_no_use_become_rare(tmp_path, library, write):
    result = streamed(library, tmp_path, LEFT_ALONE.replace("MICRO", "1").replace("WRITE", write))
    result.assert_silent()
    windows = [i for i, n in enumerate(read_of(result)) if n]
    if "clip_grad_value_" in write:  # looks at the gradients before it cuts them: what was read ahead is of use there
        assert windows == list(range(1, 40)), result.text()
    else:
        assert windows == [1, 3, 6, 11, 20, 37], result.text()


def test_window_longer_than_expected_is_judged_completely(tmp_path, library):
    body = (
        MODEL
        + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for i in range(20):
    opt.zero_grad()
    for k in range(1 + i % 3):
        poison.clear()
        if i in (7, 13) and k == i % 3:
            poison["0.bias"] = True
        loss_of(batches[i % 10]).backward()
    opt.step()
print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()))
"""
    )
    result = streamed(library, tmp_path, body, 1)
    assert [(a["step"], a["sink"]["name"]) for a in result.alarms] == [(7, "0.bias"), (13, "0.bias")], result.text()
    assert "finite True" in result.out


SCALED = (
    MODEL
    + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for i in range(12):
    opt.zero_grad()
    poison.clear()
    if i in (4, 8):
        poison["2.bias"] = True
    scaler.scale(loss_of(batches[i % 10])).backward()
    if UNSCALE:
        scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()), "scale", scaler.get_scale())
"""
)


@pytest.mark.parametrize("unscale", ["True", "False"])
def test_a_scaler_that_unscales_in_place(tmp_path, library, unscale):
    result = streamed(
        library,
        tmp_path,
        SCALED.replace("UNSCALE", unscale),
        1,
        options=("--on-alarm", "stop", "--stream-gradients", "on"),
    )
    result.assert_no_alarm()
    assert "finite True scale 256.0" in result.out, result.text()
    assert (result.watched["scaler_skips"], result.watched["steps"]) == (2, 10), result.text()


def test_gradient_consumed_by_a_hook_is_not_expected(tmp_path, library):
    body = (
        MODEL
        + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
def use_up(p):
    with torch.no_grad():
        p.sub_(p.grad, alpha=0.01)
    p.grad = None
    for q in model[10].parameters():      # and what was collected, or read, before
        q.grad = None
for p in model[4].parameters():
    p.register_post_accumulate_grad_hook(use_up)
for i in range(12):
    opt.zero_grad()
    loss_of(batches[i % 10]).backward()
    opt.step()
print("went on", ahead()["ahead"] > 0)
"""
    )
    result = streamed(library, tmp_path, body, 1)
    result.assert_silent()
    assert "went on True" in result.out, result.text()


def test_a_backward_that_raises_leaves_nothing_behind(tmp_path, library):
    body = (
        MODEL
        + """
import gc
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
raising = []
def raises(g):
    if raising:
        raise ValueError("out of luck")
model[0].weight.register_hook(raises)
for i in range(12):
    opt.zero_grad()
    poison.clear()
    if i == 8:
        poison["10.weight"] = True
    raising[:] = [1] if i == 6 else []
    ahead()
    try:
        loss_of(batches[i % 10]).backward()
    except ValueError as e:
        print(e, ahead()["joins"] > 0)
        continue
    opt.step()
"""
    )
    result = streamed(library, tmp_path, body, 1)
    assert "out of luck True" in result.out, result.text()
    assert [a["sink"]["name"] for a in result.alarms] == ["10.weight"], result.text()


def test_gradient_that_is_a_view_waits_for_step(tmp_path, library):
    body = (
        MODEL
        + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
flat = torch.zeros(sum(p.numel() for p in model.parameters()))
at = 0
for p in model.parameters():
    p.grad = flat[at:at + p.numel()].view_as(p)
    at += p.numel()
for i in range(8):
    flat.zero_()
    loss_of(batches[i]).backward()
    if i == 5:
        flat.data[3] = INF               # no version shows it
    opt.step()
print("ahead", ahead()["ahead"])
"""
    )
    result = streamed(library, tmp_path, body)
    assert "ahead 0" in result.out and result.the_alarm()["step"] == 5, result.text()


@pytest.mark.parametrize("options", [("--stream-gradients", "auto"), ("--stream-gradients", "off")])
def test_nothing_is_read_ahead_without_benefit(tmp_path, library, options):
    result = streamed(
        library,
        tmp_path,
        LEFT_ALONE.replace("MICRO", "1").replace("WRITE", "pass"),
        options=("--on-alarm", "skip", *options),
    )
    assert not any(read_of(result)), result.text()


def test_a_library_that_fails_meanwhile(tmp_path, library):
    body = (
        MODEL
        + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for i in range(10):
    opt.zero_grad()
    loss = loss_of(batches[i])
    fail(i == 4)
    loss.backward()
    fail(0)
    if i == 7:
        model[0].bias.grad[0] = NAN
    opt.step()
"""
    )
    result = streamed(library, tmp_path, body)
    assert result.code == 0, result.text()
    # Without a root's value nothing more is known of this optimizer; or the step reads all that was not read.
    assert result.watched["not_watched"] or [a["step"] for a in result.alarms] == [7], result.text()


def test_watching_ends_in_the_middle(tmp_path, library):
    body = (
        MODEL
        + """
import finitude
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for part in range(3):
    with finitude.watch(model, opt, on_alarm="skip", stream_gradients="on"):
        for i in range(5):
            opt.zero_grad()
            loss_of(batches[i]).backward()
            opt.step()
        print("ahead", ahead()["ahead"] > 0)
    opt.zero_grad()
    loss_of(batches[0]).backward()
    opt.step()
    print("none", ahead()["ahead"] == 0)
"""
    )
    from helpers import plain, write_script

    script = write_script(tmp_path, ON_DEVICE.format(library=library) + "_native.set_stream_batch(64)\n" + body)
    result = plain(tmp_path, script.name)
    assert result.out.count("ahead True\nnone True") == 3, result.text()
