"""Optimizers that are given a closure, line searches, and sparse gradients."""

import pytest

from helpers import training

LINE_SEARCH = """
w = torch.tensor([3.0], requires_grad=True)
opt = torch.optim.LBFGS([w], lr=1.0, max_iter=8, line_search_fn={search})
values = []
for i in range(3):
    def closure():
        opt.zero_grad()
        loss = {loss}
        loss.backward()
        values.append(loss.item())
        return loss
    opt.step(closure)
print("ended", bool(torch.isfinite(w).all()), any(v != v or abs(v) == INF for v in values))
"""


def test_overflowing_evaluations_of_a_line_search_are_silent(tmp_path):
    # exp overflows at the first trial point, far beyond; the search then comes back.
    got = training(
        tmp_path, LINE_SEARCH.format(search="'strong_wolfe'", loss="(w - 200 * (len(values) == 1)).pow(2).exp().sum()")
    )
    assert got.out == "ended True True\n", got.text()
    got.assert_silent()
    assert got.watched["steps"] == 3


def test_nan_loss_returned_by_a_line_search_alarms(tmp_path):
    got = training(tmp_path, LINE_SEARCH.format(search="None", loss="w.pow(2).sum() * (NAN if i == 1 else 1.0)"))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["optimizer"], alarm["sink"]["kind"], alarm["weights"]) == (
        1,
        "LBFGS",
        "loss",
        "clean",
    ), got.text()


SEARCH_STATE = """
inputs, wanted = torch.randn(20, 4), torch.randn(20)
w = nn.Parameter(torch.zeros(4))
opt = torch.optim.LBFGS([w], lr=0.3, max_iter=3)
def flat(value):
    return [flat(v) for v in value] if isinstance(value, list) else value.tolist() if torch.is_tensor(value) else value
for i in range(6):
    if i == {left_out}:
        continue
    def closure():
        opt.zero_grad()
        loss = (inputs @ w - wanted).pow(2).mean()
        if i == {bad}:
            loss = loss + (loss * 0).log()
        loss.backward()
        return loss
    opt.step(closure)
print(w.tolist(), [flat(list(s.values())) for s in opt.state.values()])
"""


def test_line_search_step_is_undone_with_all_state(tmp_path):
    skipped = training(tmp_path, SEARCH_STATE.format(bad=3, left_out=None), "--on-alarm", "skip")
    reference = training(tmp_path, SEARCH_STATE.format(bad=None, left_out=3))
    assert (skipped.code, skipped.out) == (0, reference.out)
    assert skipped.the_alarm()["weights"] == "clean"


def test_line_search_step_is_explained_by_its_closure(tmp_path):
    alarm = training(tmp_path, SEARCH_STATE.format(bad=3, left_out=None), "--on-alarm", "stop").the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == ("persistent", "closure", True)
    birth = alarm["births"][0]
    assert (birth["phase"], birth["op"], birth["source"]) == ("forward", "aten::log", "loss = loss + (loss * 0).log()")


SHARP = """
class Sharp(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {{}})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        for p in self.param_groups[0]["params"]:
            self.state[p]["moved"] = p.grad * 0.05
            p.add_(self.state[p]["moved"])
        self.zero_grad()
        closure()
        for p in self.param_groups[0]["params"]:
            p.sub_(self.state[p]["moved"])
        self.base.step()
        self.zero_grad()
        return loss
net = nn.Linear(3, 1)
opt = Sharp(net.parameters())
for i in range(6):
    x = torch.rand(6, 3)
    if i == 3:
        x[4] = {row}
    if i == {left_out}:
        continue
    def closure():
        loss = ((net(x)[:, 0] - x.sum(1)) / x.sum(1)).pow(2).mean()
        loss.backward()
        return loss
    opt.step(closure)
print(net.weight.tolist())
"""


def test_step_clearing_gradients_at_end_is_skipped_once(tmp_path):
    """Sharpness-aware minimisation: neither loop nor closure clears them, so what the step left out had must not be
    added to. What its closure computes is the program's forward pass, and no arithmetic of the optimizer."""
    skipped = training(tmp_path, SHARP.format(row=0, left_out=None), "--on-alarm", "skip")
    reference = training(tmp_path, SHARP.format(row=0, left_out=3))
    assert (skipped.code, skipped.out) == (0, reference.out), skipped.text()
    alarm = skipped.the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], alarm["optimizer"], birth["phase"], birth["op"], birth["rows"]) == (
        3,
        "Sharp",
        "forward",
        "aten::div",
        [4],
    )
    assert alarm["cause"]["class"] == "division-by-zero", alarm["cause"]


CLEARS = """
class Plain(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=-0.05)
        self.zero_grad()
net, other = nn.Linear(3, 1), nn.Linear(3, 1)
opt, second = Plain(net.parameters(), {{}}), torch.optim.SGD(other.parameters(), 0.1)
for i in range(16):
    x = torch.rand(6, 3)
    if i == 3:
        x[4] = {row}
    if i != {left_out}:
        ((net(x)[:, 0] - x.sum(1)) / x.sum(1)).pow(2).mean().backward()
        opt.step()
    second.zero_grad()
    other(torch.ones(2, 3)).pow(2).mean().backward()
    second.step()
print(net.weight.tolist(), other.weight.tolist())
"""


def test_the_same_without_a_closure(tmp_path):
    skipped = training(tmp_path, CLEARS.format(row=0, left_out=None), "--on-alarm", "skip")
    reference = training(tmp_path, CLEARS.format(row=0, left_out=3))
    assert (skipped.code, skipped.out) == (0, reference.out), skipped.text()
    assert (skipped.the_alarm()["step"], skipped.the_alarm()["optimizer"]) == (3, "Plain")


TWO_PHASES = """
z, scale = nn.Parameter(torch.tensor([0.3, 0.7]).double()), nn.Parameter(torch.ones(1).double())
def fit(own):
    k = torch.eye(2).double()
    if own:
        k = k + (-(z[:, None] - z[None]).pow(2).sqrt()).exp()  # birth
    return torch.linalg.cholesky(k).sum() + (scale - z.sum()).pow(2).sum()
adam = torch.optim.Adam([z, scale], lr=0.01)
for i in range(3):
    adam.zero_grad(); fit(False).backward(); adam.step()
search = torch.optim.LBFGS([z, scale], max_iter=4)
def closure():
    search.zero_grad()
    loss = fit(True)
    loss.backward()
    return loss
search.step(closure)
"""


def test_closure_exception_belongs_to_its_calling_optimizer(tmp_path):
    """Another one owns the same parameters, and has stepped before. By then the search has written the weights."""
    alarm = training(tmp_path, TWO_PHASES, "--on-alarm", "stop").the_alarm()
    assert (alarm["optimizer"], alarm["step"], alarm["weights"]) == ("LBFGS", 0, "damaged"), alarm
    assert "# birth" in alarm["births"][0]["source"] and alarm["cause"]["class"] == "domain-edge", alarm["births"]


def test_healthy_line_search_is_silent_and_one_step(tmp_path):
    got = training(tmp_path, LINE_SEARCH.format(search="'strong_wolfe'", loss="(w - 1).pow(2).sum()"))
    got.assert_silent()
    assert got.watched["steps"] == 3


CLOSURE = """
opt = torch.optim.{make}
for i, x in enumerate(batches):
    def closure():
        opt.zero_grad()
        loss = loss_of(x)
        if i == {bad}: loss = loss * NAN
        loss.backward()
        return loss
    opt.step({argument})
print("ended", finite())
"""


@pytest.mark.parametrize("argument", ["closure", "closure=closure"])
@pytest.mark.parametrize("make", ["SGD(model.parameters(), lr=0.1, momentum=0.9)", "Adam(model.parameters())"])
def test_nan_loss_in_closure_of_plain_optimizer_alarms(tmp_path, make, argument):
    alarm = training(tmp_path, CLOSURE.format(make=make, bad=3, argument=argument)).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean")


def test_a_healthy_closure_is_silent(tmp_path):
    got = training(tmp_path, CLOSURE.format(make="Adam(model.parameters())", bad=-1, argument="closure"))
    got.assert_silent()
    assert got.watched["steps"] == 6


def test_skipping_a_bad_closure_leaves_the_weights_finite(tmp_path):
    got = training(
        tmp_path,
        CLOSURE.format(make="Adam(model.parameters())", bad=3, argument="closure"),
        "--on-alarm",
        "skip",
        "--level",
        "trace",
    )
    assert (got.code, got.out, got.the_alarm()["step"]) == (0, "ended True\n", 3), got.text()


SPARSE = """
table = nn.Embedding(10, 4, sparse=True)
opt = torch.optim.{make}(table.parameters(), lr=0.01)
for i in range(5):
    opt.zero_grad()
    rows = table(torch.tensor([1, 2, 2, 7]))
    {fault}
    rows.pow(2).mean().backward()
    opt.step()
print("ended", bool(torch.isfinite(table.weight).all()))
"""

# The gradient of the second and third look-up is bad though the loss is not: row 2 after coalescing.
ONE_ROW = "if i == 3: rows.register_hook(lambda g: torch.where(torch.arange(4)[:, None] == 2, {value}, g))"


@pytest.mark.parametrize("make", ["SparseAdam", "SGD", "Adagrad"])
@pytest.mark.parametrize("value", ["NAN", "INF"])
def test_a_bad_row_of_a_sparse_gradient_alarms(tmp_path, make, value):
    alarm = training(tmp_path, SPARSE.format(make=make, fault=ONE_ROW.format(value=value))).the_alarm()
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (3, {"kind": "gradient", "name": "weight"}, "clean")


@pytest.mark.parametrize("make", ["SparseAdam", "SGD", "Adagrad"])
def test_healthy_sparse_gradients_are_silent(tmp_path, make):
    got = training(tmp_path, SPARSE.format(make=make, fault="pass"))
    got.assert_silent()
    assert got.watched["gradients_scanned"] == 5


def test_birth_is_found_through_sparse_gradients(tmp_path):
    """A table that is read twice has two sparse gradients, which autograd adds up."""
    fault = "rows = rows * table(torch.tensor([3, 7, 2, 1])); rows = (rows * 0).log() if i == 2 else rows"
    alarm = training(tmp_path, SPARSE.format(make="SparseAdam", fault=fault), "--on-alarm", "stop").the_alarm()
    assert [b["op"] for b in alarm["births"]] == ["aten::log"], alarm["births"]
    fault = fault.replace(".log()", ".sqrt()")
    alarm = training(tmp_path, SPARSE.format(make="SparseAdam", fault=fault), "--on-alarm", "stop").the_alarm()
    assert [(b["phase"], b["node"]) for b in alarm["births"]] == [("backward", "SqrtBackward0")], alarm["births"]
    assert alarm["cause"]["class"] == "domain-edge" and "sqrt" in alarm["births"][0]["source"]


def test_sparse_gradients_are_judged_after_coalescing(tmp_path):
    # Two finite contributions to row 2 whose sum is beyond float32.
    fault = "if i == 3: rows.register_hook(lambda g: g * 0 + 3e38)"
    got = training(tmp_path, SPARSE.format(make="SparseAdam", fault=fault))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "gradient", "clean"), got.text()
