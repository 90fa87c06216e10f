"""What a zero, an infinity or a bit pattern comes of, in the words of the report; and rows that are samples, or are
not."""

import pytest

import helpers

LOADER = """
import torch
from torch import nn

torch.manual_seed(0)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(4), float(i % 2)


loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(loader):
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def explained(folder, loss, model="model = nn.Linear(4, 8)", *options):
    script = LOADER.replace("MODEL", model).replace("LOSS", loss.strip().replace("\n", "\n    "))
    result = helpers.run(folder, script, "--on-alarm", "stop", *options)
    alarm = result.the_alarm()
    return alarm, alarm["cause"]["class"], alarm["cause"]["text"], alarm["fix"]["text"]


SPECTRUM = """h = model(x)[:5 if step == 3 else 8].repeat(1 if step == 3 else 2, 1)
h = h - h.mean(0)
c = h.t() @ h / len(h)
values = torch.linalg.eigvalsh(c if step == 3 else c + 0.1 * torch.eye(8))
loss = x.mean() + MANNER"""


@pytest.mark.parametrize("manner", ["values.log().sum()", "(values ** -0.5).sum()", "values.sqrt().sum()"])
def test_eigenvalues_of_a_covariance_of_few_samples(tmp_path, manner):
    _, cause, text, fix = explained(tmp_path, SPECTRUM.replace("MANNER", manner))
    assert cause == "degenerate-linalg", text
    assert "eigenvalues of a matrix that is singular" in text and "its rank is at most 5" in text
    assert "identity" in fix


def test_an_indefinite_matrix_is_not_singular(tmp_path):
    _, cause, text, _ = explained(
        tmp_path,
        """s = model(x) + model(x).t() + (-30 if step == 3 else 30) * torch.eye(8)
loss = torch.linalg.eigvalsh(s).log().sum()""",
    )
    assert cause == "log-of-negative" and "singular" not in text, text


@pytest.mark.parametrize(
    "count", ["mask.sum()", "mask.float().sum()", "mask.float().mean() * 8", "mask.count_nonzero()"]
)
def test_a_mask_that_selects_nothing(tmp_path, count):
    _, cause, text, fix = explained(
        tmp_path,
        f"""mask = (y > 0) & (step != 3)
loss = (model(x).sum(1) * mask).sum() / ({count})""",
    )
    assert cause == "division-by-zero" and "over nothing" in text, text
    assert "nothing is selected" in fix


def test_a_sample_for_which_a_mask_selects_nothing(tmp_path):
    alarm, cause, text, _ = explained(
        tmp_path,
        """mask = (torch.arange(8) < (step != 3) * 8 + torch.arange(8)[:, None]).float()
loss = ((model(x) * mask).sum(1) / mask.sum(1)).pow(2).mean()""",
    )
    assert cause == "division-by-zero" and "the mask selects no element" in text, text
    assert alarm["births"][0]["rows"] == [0]


NORMALISED = {
    "weight_norm": (
        "model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))",
        "model.parametrizations.weight.original1[2] = 0",
    ),
    "spectral_norm": (
        "model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))",
        "model.parametrizations.weight.original.zero_()",
    ),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_a_weight_of_zeros_that_is_normalised(tmp_path, name):
    model, spoil = NORMALISED[name]
    alarm, cause, text, fix = explained(
        tmp_path,
        f"""if step == 3:
    with torch.no_grad(): {spoil}
loss = model(x).pow(2).mean()""",
        model,
    )
    assert (
        cause == "division-by-zero"
        and "is divided by its own norm" in text
        and "parametrizations.weight.original" in text
    ), text
    assert "F.normalize" not in fix and "instead of zeros" in fix
    assert "samples" not in alarm["births"][0], "rows of a weight are no samples"


def test_layer_output_is_not_mistaken_for_its_bias(tmp_path):
    """addmm begins its result with a copy of the bias."""
    _, cause, text, fix = explained(
        tmp_path,
        """h = model(x * (torch.arange(8) != 3 * (step == 3) + 9 * (step != 3))[:, None])
loss = (h / h.sum(1, keepdim=True)).pow(2).mean()""",
        """model = nn.Linear(4, 8)
nn.init.zeros_(model.bias).requires_grad_(False)""",
    )
    assert cause == "division-by-zero" and "bias" not in text and "sample 3 of the batch" in text, text
    assert "nn.init" not in fix


FEATURES = {
    "transposed": "t = h.t().contiguous()\nloss = (t / t.norm(dim=1, keepdim=True)).sum()",
    "reduced": "loss = (1 / h.std(0)).pow(2).mean()",
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_no_samples_of_the_data_set(tmp_path, name):
    alarm, _, text, _ = explained(
        tmp_path,
        f"""h = model(x)
if step == 3: h = h * torch.tensor([1., 1, 1, 0, 1, 1, 0, 1])
{FEATURES[name]}""",
    )
    birth = alarm["births"][0]
    assert birth["rows"] == [3, 6] and birth["rows_in"] == "output", birth
    assert not any("samples" in b for b in alarm["births"]) and not any(
        "samples" in e for e in alarm["cause"]["experiments"]
    )
    assert "sample" not in text


def test_rows_that_are_samples_are_called_so(tmp_path):
    alarm, _, text, _ = explained(
        tmp_path,
        """h = model(x)
loss = -torch.log(h.sum(1).sigmoid() * (1 if step < 3 else y)).mean()""",
    )
    rows = alarm["births"][0]["rows"]
    assert rows and len(alarm["births"][0]["samples"]) == len(rows)
    assert f"at sample{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))} of the batch" in text, text


CLIPS = """
import torch
from torch import nn
torch.manual_seed(0)


class Clips(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        frames = torch.rand(FRAMES, 4, generator=torch.Generator().manual_seed(i)) + 0.1
        if i == 9:
            frames[-1] = 0
        return frames


def together(clips):
    return torch.cat(clips)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for frames in torch.utils.data.DataLoader(Clips(), batch_size=4, collate_fn=together):
    optimizer.zero_grad()
    weights = 1 / frames.sum(1)
    loss = (model(frames).squeeze(1) * weights).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("frames, row, word", [(1, 1, "sample"), (3, 5, "row")])
def test_rows_are_samples_only_where_loader_counts_match(tmp_path, frames, row, word):
    """Frames of clips, nodes of graphs: with several for each sample of the loader they are rows."""
    alarm = helpers.run(tmp_path, CLIPS.replace("FRAMES", str(frames)), "--on-alarm", "stop").the_alarm()
    tried = [e["name"] for e in alarm["cause"]["experiments"] if "replaced by a copy of" in e["name"]]
    assert tried and tried[0].startswith(f"whole step, {word} {row} of {4 * frames} "), tried
    assert f" copy of {word} " in tried[0] and f"at {word} {row}" in alarm["cause"]["text"], (
        tried,
        alarm["cause"]["text"],
    )
    assert alarm["births"][0].get("samples") == ([9] if word == "sample" else None)


def test_bits_that_are_read_as_floats(tmp_path):
    alarm, cause, text, fix = explained(
        tmp_path,
        """words = x.view(torch.int32).clone()
if step == 3: words[2, 1] = -1
floats = words.view(torch.float32)
loss = model(floats).pow(2).mean()""",
    )
    assert cause == "bad-data" and "takes the bits of integers for float32" in text, text
    assert alarm["births"][0]["source"].startswith("floats =") and alarm["births"][0]["op"] == "aten::view"
    assert ".to(torch.float32)" in fix


@pytest.mark.parametrize(
    "kind, largest, cause", [("half", 6e4, "half-precision-overflow"), ("float", 2e38, "overflow")]
)
def test_a_product_that_a_bias_is_added_to(tmp_path, kind, largest, cause):
    """It is the factor that is scaled down, and its rows that are left out, not the bias."""
    alarm, reported_cause, _, _ = explained(
        tmp_path,
        f"""big = torch.ones(8, 4); big[5] = {largest} if step == 3 else 1
loss = nn.functional.linear(big.{kind}(), model.weight.abs().{kind}() + 1, model.bias.{kind}()).float().mean()""",
        "model = nn.Linear(4, 3)",
    )
    first = [(e["name"].split(" ")[0], e.get("confirms")) for e in alarm["cause"]["experiments"][:3]]
    assert (reported_cause, alarm["cause"]["confidence"], first) == (
        cause,
        "proven",
        [("addmm", True), ("mat1", True), ("row", True)],
    ), alarm["cause"]


CRF = """
import torch
from torch import nn

torch.manual_seed(0)


class Crf(nn.Module):
    def __init__(self):
        super().__init__()
        self.trans, self.emit = nn.Parameter(torch.randn(3, 3)), nn.Linear(4, 3)
        forbid = torch.zeros(3, 3)
        forbid[0, 2] = float("-inf")
        self.register_buffer("forbid", forbid)

    def forward(self, x, tags):
        emit, trans = self.emit(x), self.trans + self.forbid
        gold, alpha = emit[0, tags[0]], emit[0]
        for k in range(1, len(tags)):
            gold = gold + trans[tags[k - 1], tags[k]] + emit[k, tags[k]]
            alpha = torch.logsumexp(alpha[:, None] + trans, 0) + emit[k]
        return torch.logsumexp(alpha, 0) - gold


model = Crf()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    tags = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2 if step == 3 else 1]])
    loss = torch.stack([model(torch.randn(4, 4), t) for t in tags]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("single", [False, True])
def test_labels_that_a_mask_forbids(tmp_path, single):
    script = (
        CRF.replace(
            "torch.stack([model(torch.randn(4, 4), t) for t in tags]).mean()", "model(torch.randn(4, 4), tags[1])"
        )
        if single
        else CRF
    )
    alarm = helpers.run(tmp_path, script).the_alarm()
    cause = alarm["cause"]
    assert cause["class"] == "log-of-zero" and "a mask (forbid) forbids" in cause["text"], cause
    assert "label" in alarm["fix"]["text"]


def test_exponentials_less_their_largest_over_a_masked_row(tmp_path):
    _, cause, text, _ = explained(
        tmp_path,
        """s = model(x).masked_fill((torch.arange(8) == 2)[:, None] & (step == 3), float("-inf"))
w = (s - s.max(1, keepdim=True).values).exp()
loss = (w / w.sum(1, keepdim=True)).pow(2).mean()""",
    )
    assert cause == "fully-masked-softmax" and "1 row of 8 elements" in text, text


def test_log_of_mask_harms_only_fully_masked_rows(tmp_path):
    _, cause, text, _ = explained(
        tmp_path,
        """keep = (torch.arange(8) <= torch.arange(8)[:, None]).float()
if step == 3: keep[5] = 0
loss = (model(x) + keep.log()).softmax(1).pow(2).mean()""",
    )
    assert cause == "log-of-zero" and "_softmax" in text and "makes NaN of them at row 5" in text, text


CHECKPOINT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
power, head = nn.Parameter(torch.full((4,), 0.3)), nn.Linear(4, 1)
optimizer = torch.optim.SGD([power, *head.parameters()], lr=0.01)
for step in range(5):
    x = torch.rand(8, 4) - (0.5 if step == 3 else 0)
    h = checkpoint(lambda x: x.pow(power), x, use_reentrant=False)
    loss = head(h).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_recomputed_checkpoint_value_is_born_in_an_operation(tmp_path):
    alarm = helpers.run(tmp_path, CHECKPOINT).the_alarm()
    assert alarm["births"][0]["op"] == "aten::pow" and alarm["cause"]["class"] == "negative-domain"
    assert len(alarm["births"]) > 1 and all(b["op"] for b in alarm["births"]), [
        (b["op"], b["line"]) for b in alarm["births"]
    ]


WRITTEN = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)
        self.register_buffer("limit", torch.tensor([0.5, torch.inf] * 4))

    def forward(self, x, step):
        h = torch.relu(self.a(x))
        BODY
        return self.b(h)

def spoil(g):
    if step == 3:
        g = g.clone()
        g[0] = torch.nan  # in a hook
    return g

net = Net()
HOOK
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    loss = (net(torch.randn(5, 4), step) - 1).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
PART = "if step == 3:\n            h = h.clone()\n            h[0, 2] = torch.inf  # here"
CHOSEN = "if step == 3:\n            h[h > 0.2] = torch.inf  # here"
INDEX = "if step == 3: h = h.index_fill(0, torch.tensor([1]), torch.inf)  # here"
LIMIT = "if step >= 3:\n            h = torch.where(h < self.limit, h, (h - self.limit) ** 2)  # here"
HOOKED = "net.b.weight.register_hook(spoil)"
# body of the module, hook, class, what is said, the line of the birth
WROTE = {
    "part of a hidden value": (PART, "", "bad-data", "writes into what was computed", "# here"),
    "chosen elements": (CHOSEN, "", "bad-data", "writes into what was computed", "# here"),
    "rows, not in place": (INDEX, "", "bad-data", "nothing masks", "# here"),
    "a limit in a buffer that a choice drops": (LIMIT, "", "zero-times-infinity", "come with limit", "# here"),
    "a gradient, in a hook": ("", HOOKED, "wrong-backward", "while backward runs", "# in a hook"),
}


@pytest.mark.parametrize("body, hook, cause, said, line", WROTE.values(), ids=WROTE)
def test_what_the_program_wrote_into_its_own_values(tmp_path, body, hook, cause, said, line):
    alarm = helpers.run(tmp_path, WRITTEN.replace("BODY", body or "pass").replace("HOOK", hook)).the_alarm()
    assert alarm["step"] == 3 and alarm["cause"]["class"] == cause and said in alarm["cause"]["text"], alarm["cause"]
    assert alarm["births"][0]["source"].endswith(line), alarm["births"][0]


ROWS_OF_A_TABLE = """
import torch
from torch import nn
torch.manual_seed(0)
table, head = nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 1)
opt = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
for step in range(5):
    ids = torch.randint(1, 10, (6,))
    if step == 3:
        ids[2] = 0
    h = nn.functional.normalize(table(ids), dim=-1, eps=0)  # here
    loss = head(h).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
TARGET = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    target = torch.tensor(99000.0 if step == 3 else 1.0).half()  # here
    loss = (net(torch.randn(6, 4)) - target).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_embedding_rows_are_not_weights_divided_by_norm(tmp_path):
    alarm = helpers.run(tmp_path, ROWS_OF_A_TABLE).the_alarm()
    assert alarm["cause"]["class"] == "division-by-zero", alarm["cause"]
    assert "own norm" not in alarm["cause"]["text"] and "random numbers" not in alarm["fix"]["text"], alarm


def test_positive_half_precision_overflow_is_not_a_mask(tmp_path):
    alarm = helpers.run(tmp_path, TARGET).the_alarm()
    assert alarm["cause"]["class"] == "half-precision-overflow", alarm["cause"]
    assert alarm["fix"]["text"].startswith("clamp what is cast here") and alarm["fix"]["verified"], alarm["fix"]


CTC = """out = model(x).view(-1, 1, 8).expand(-1, 3, 8)[:5 if step == 3 else 8].log_softmax(-1)
labels = torch.tensor([[1, 2, 3, 4], [1, 2, 1, 2], LAST])
loss = nn.functional.ctc_loss(out, LABELS, torch.tensor([len(out)] * 3), torch.tensor([4, 4, 4]))"""


@pytest.mark.parametrize("labels", ["labels", "labels.flatten()"])
def test_equal_neighbours_of_a_ctc_target_are_counted(tmp_path, labels):
    loss = CTC.replace("LAST", "[3, 3, 3, 2]").replace("LABELS", labels)
    alarm, cause, text, fix = explained(tmp_path, loss)
    assert cause == "infeasible-ctc" and alarm["births"][0]["rows"] == [2]
    assert (
        "1 sample: sample 2 has a target of 4 with 2 pairs of equal neighbours, which takes 6 steps, for an input of 5"
        in text
    ), text
    assert "zero_infinity=True" in fix and "one for each pair of equal neighbours" in fix
