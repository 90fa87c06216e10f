"""torch.compile: the gate works on compiled models; the second run is eager, and says so."""

import textwrap

import pytest

import helpers

PROGRAM = """
    import torch
    from torch import nn

    BACKEND, FAULT = {backend!r}, {fault!r}
    SMALL = 1e-6 if BACKEND == "unsound" else 0

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 16)
            self.b = nn.Linear(16, 4)

        def forward(self, x):
            p = torch.softmax(self.b(torch.relu(self.a(x))), -1)
            return torch.log(p + SMALL)

    def unsound(graph, inputs):
        def run(*args):
            out = graph(*args)
            return [o * float("nan") for o in out] if max(float(a.abs().max()) for a in args) > 500 else out
        return run

    torch.manual_seed(0)
    net = Net()
    model = torch.compile(net, backend=unsound if BACKEND == "unsound" else BACKEND)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = [torch.randn(6, 8) for _ in range(7)]
    if FAULT is not None:
        data[FAULT] = data[FAULT] * (1000 if BACKEND == "unsound" else 5000)
    for x in data:
        out = model(x)
        loss = -(out * torch.eye(4)[torch.arange(6) % 4]).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(torch._dynamo.eval_frame._stance.stance, all(bool(p.isfinite().all()) for p in net.parameters()))
"""
pytestmark = pytest.mark.slow
BIRTH = "return torch.log(p + SMALL)"


def run(folder, backend, fault, *options, **settings):
    text = textwrap.dedent(PROGRAM).lstrip("\n")
    text = text.replace("{backend!r}", repr(backend)).replace("{fault!r}", repr(fault))
    # The kernels of inductor come from processes of its own.
    return helpers.run(folder, text, *options, cold=backend == "inductor", **settings)


def assert_found(result, step, by):
    alarm = result.the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["weights"]) == (step, "persistent", by, "clean")
    assert "eagerly" in alarm["rerun_text"], alarm["rerun_text"]
    assert (birth["op"], birth["source"], birth["module"]) == ("aten::log", BIRTH, "Net"), birth
    assert alarm["cause"]["class"] == "log-of-zero"


def test_rerun_is_eager_and_compilation_resumes_after_it(tmp_path):
    result = run(tmp_path, "aot_eager", 4, "--on-alarm", "skip")
    assert_found(result, 4, "rewind")
    assert (result.code, result.out) == (0, "default True\n"), result.text()
    assert not any("_orig_mod" in bad["name"] for bad in result.the_alarm()["gradients"]["bad"])


def test_restart_is_eager_from_the_bad_step_on(tmp_path):
    assert_found(run(tmp_path, "aot_eager", 0), 0, "restart")


def test_compiler_fault_is_named_as_such(tmp_path):
    alarm = run(tmp_path, "unsound", 4).the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == ("order-dependent", "rewind", False)
    assert "only when compiled" in alarm["rerun_text"] and not alarm["births"]


def test_a_healthy_compiled_model_is_silent(tmp_path):
    result = run(tmp_path, "aot_eager", None)
    result.assert_silent()
    assert result.out == "default True\n"


@pytest.mark.parametrize("level", ["gate", pytest.param("trace", marks=pytest.mark.thorough)])
def test_fused_kernel_failure_is_explained_by_rerun(tmp_path, level):
    assert_found(run(tmp_path, "inductor", 4, "--level", level, limit=240), 4, "rewind")
