"""A script that catches our exception, wraps it or ends for it: the step was reported, and what it left behind is no
news."""

import sys

import pytest

from helpers import training

LOOP = """
import sys
def step(i, x):
    loss = loss_of(x)
    if i in {bad}: loss = loss * NAN
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss
for i, x in enumerate(batches):
    try:
        loss = step(i, x)
    except Exception as e:
        {does}
"""

# In the module's own frame, which still holds the loss when the script ends.
FLAT = """
import sys
for i, x in enumerate(batches):
    try:
        loss = loss_of(x)
        if i == 3: loss = loss * NAN
        opt.zero_grad(); loss.backward(); opt.step()
    except Exception as e:
        {does}
"""

ENDS = {
    "raise from": "raise RuntimeError('training failed') from e",
    "raise in the handler": "raise RuntimeError('training failed')",
    "raise from None": "raise RuntimeError('training failed') from None",
    "a chain": """
        try: raise RuntimeError('one') from e
        except Exception as two: raise KeyError('two') from two""",
    "the exception's own loop": "e.__cause__ = RuntimeError('loop'); e.__cause__.__cause__ = e; raise e.__cause__",
    "sys.exit": "sys.exit(1)",
    "SystemExit with words": "raise SystemExit('stopping') from None",
}


@pytest.mark.parametrize("loop", [LOOP, FLAT], ids=["in a function", "in the module"])
@pytest.mark.parametrize("does", ENDS.values(), ids=ENDS)
def test_script_ending_on_our_exception_has_one_alarm(tmp_path, loop, does):
    got = training(tmp_path, loop.format(bad="(3,)", does=does), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert got.code == 1 and (alarm["step"], alarm["births"][0]["op"]) == (3, "aten::mul"), got.text()
    assert "order-dependent" not in got.err and not got.advisories()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no groups of exceptions")
def test_a_group_of_exceptions_is_looked_into(tmp_path):
    got = training(
        tmp_path,
        """
        import asyncio
        async def train():
            for i, x in enumerate(batches):
                loss = loss_of(x) * (NAN if i == 3 else 1)
                opt.zero_grad(); loss.backward(); opt.step()
                await asyncio.sleep(0)
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(train())
        asyncio.run(main())
        """,
        "--on-alarm",
        "stop",
    )
    assert got.the_alarm()["step"] == 3, got.text()


def test_script_giving_up_after_skip_has_one_alarm(tmp_path):
    got = training(
        tmp_path,
        LOOP.format(bad="(3,)", does="raise").replace(
            "loss = step(i, x)",
            "loss = step(i, x)\n        if not torch.isfinite(loss): raise ValueError('loss is nan')",
        ),
        "--on-alarm",
        "skip",
    )
    assert got.the_alarm()["step"] == 3, got.text()


# The twins: our exception was caught, and it is the next step that the script gives up for.
NEW = {
    "a guard after backward": "loss = loss * NAN; loss.backward(); assert "
    "torch.isfinite(model.weight.grad).all(), 'gradients'",
    "a guard before backward": "loss = loss * NAN; assert torch.isfinite(loss), 'loss is nan'",
    "a guard of gradients": """
        loss.register_hook(lambda g: g * NAN)
        loss.backward(); assert torch.isfinite(model.bias.grad).all(), 'gradients'""",
}


@pytest.mark.parametrize("zeroes", ["opt.zero_grad()", "pass"], ids=["zeroed", "not zeroed"])
@pytest.mark.parametrize("guarded", NEW.values(), ids=NEW)
def test_new_bad_step_after_caught_exception_alarms_again(tmp_path, guarded, zeroes):
    got = training(
        tmp_path,
        f"""
        for i, x in enumerate(batches):
            loss = loss_of(x)
            if i < 3:
                try:
                    (loss * NAN if i == 2 else loss).backward(); opt.step(); opt.zero_grad()
                except FloatingPointError:
                    {zeroes}
                continue
            {guarded.replace(chr(10), chr(10) + "    ")}
            opt.step()
        """,
        "--on-alarm",
        "stop",
    )
    assert got.code == 1 and "AssertionError" in got.err, got.text()
    assert [a["step"] for a in got.alarms] == [2, 3], got.text()


def test_bad_retry_in_the_handler_alarms_again(tmp_path):
    got = training(
        tmp_path,
        LOOP.format(
            bad="(3,)",
            does="""
        opt.zero_grad()
        again = loss_of(x) / 0
        if not torch.isfinite(again): raise ValueError('again')""",
        ),
        "--on-alarm",
        "stop",
    )
    assert got.code == 1 and [a["step"] for a in got.alarms] == [3, 4], got.text()
