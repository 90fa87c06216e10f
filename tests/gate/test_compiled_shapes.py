"""Sizes that change under torch.compile, and all else that calls operators without values: watched or not, the run is
the same.

One process trains with several backends and settings, first unwatched and then with `finitude.watch` on at each level;
the plainest program runs under `finitude run` too. Losses and weights are compared bit for bit."""

import pytest

from helpers import plain, run, without_closing_line, write_script

MATRIX = """
    import hashlib, itertools, sys
    import torch
    from torch import nn

    BACKENDS, DYNAMIC, LEVELS = {backends!r}, {dynamic!r}, {levels!r}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(torch.relu(self.norm(self.first(x))))

    def train(backend, dynamic):
        torch._dynamo.reset()
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.AdamW(net.parameters(), 1e-2)
        model = torch.compile(net, backend=backend, dynamic=None if dynamic == "mark" else dynamic)
        data = torch.utils.data.TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))
        losses = []
        for epoch in range(2):
            for x, y in torch.utils.data.DataLoader(data, 8, shuffle=True):
                if dynamic == "mark":
                    torch._dynamo.mark_dynamic(x, 0)
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                assert torch.isfinite(loss) and not loss != loss
                opt.step()
                losses.append(loss.item().hex())
        state = b"".join(t.detach().numpy().tobytes() for t in net.state_dict().values())
        return losses, hashlib.sha256(state).hexdigest()

    for backend, dynamic in itertools.product(BACKENDS, DYNAMIC):
        want = train(backend, dynamic)
        for level in LEVELS:
            import finitude
            with finitude.watch(level=level, report=f"{{level}}.json", runs="runs") as watched:
                got = train(backend, dynamic)
                assert not watched.alarms and watched.report()["watched"]["steps"] == 6, watched.report()
            assert got == want, (backend, dynamic, level, got, want)
        print(backend, dynamic, *want[0], want[1])
    """
DYNAMIC = (None, True, False, "mark")
LEVELS = ("gate", "tape", "trace")


def matrix(backends, dynamic, levels):
    return (
        MATRIX.replace("{backends!r}", repr(backends))
        .replace("{dynamic!r}", repr(dynamic))
        .replace("{levels!r}", repr(levels))
        .replace("{{", "{")
        .replace("}}", "}")
    )


@pytest.fixture(scope="module")
def last_batch(tmp_path_factory):
    """The program, and what it does without us."""
    folder = tmp_path_factory.mktemp("unwatched")
    text = matrix(["aot_eager"], [None], [])
    return text, plain(folder, write_script(folder, text))


@pytest.mark.parametrize("level", LEVELS)
def test_a_last_batch_that_is_smaller(tmp_path, last_batch, level):
    text, want = last_batch
    got = run(tmp_path, text, "--level", level)
    got.assert_silent()
    assert (got.out, without_closing_line(got.err)) == (want.out, want.err) and got.watched["steps"] == 6, got.text()


def assert_the_same(folder, backends, dynamic):
    """In one process: each pair without us, then at each level."""
    done = plain(folder, write_script(folder, matrix(backends, dynamic, LEVELS)))
    assert done.code == 0 and len(done.out.splitlines()) == len(backends) * len(dynamic), done.text()


def test_all_settings_without_kernels_under_watch(tmp_path):
    assert_the_same(tmp_path, ["eager", "aot_eager"], DYNAMIC)


@pytest.mark.parametrize(
    "dynamic", [None, "mark", *(pytest.param(value, marks=pytest.mark.thorough) for value in (True, False))]
)
def test_inductor_under_watch(tmp_path, dynamic):
    assert_the_same(tmp_path, ["inductor"], [dynamic])


BAD = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    model = torch.compile(net, backend="aot_eager")
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for rows in (8, 8, 6, 8, 5, 3):
        x = torch.randn(rows, 6)
        loss = (torch.log(model(x).pow(2) * (rows != 5)) * x.sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("ended", all(bool(p.isfinite().all()) for p in net.parameters()))
    """


@pytest.mark.parametrize("level", ["gate", "trace", "tape"])
def test_a_bad_step_of_another_size_is_explained(tmp_path, level):
    got = run(tmp_path, BAD, "--level", level, "--on-alarm", "skip")
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (got.code, got.out, alarm["step"], alarm["weights"]) == (0, "ended True\n", 4, "clean"), got.text()
    assert (birth["op"], alarm["cause"]["class"]) == ("aten::log", "log-of-zero") and "torch.log(" in birth["source"], (
        got.text()
    )
