"""`finitude diff` of two dumps of modules: names, first divergence, values, maps, repeats, msprobe."""

import json

import pytest
import torch

import finitude
import helpers


class Net(torch.nn.Module):
    def __init__(self, eps, scale):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.n = torch.nn.LayerNorm(16, eps=eps)
        self.head = torch.nn.Linear(16, 1)
        self.scale = scale

    def forward(self, x):
        return self.head(torch.relu(self.n(self.a(x))) * self.scale)


def dump(folder, kind="tensors", eps=1e-5, scale=1.0, seed=0, wrap=False):
    """The file of step 0 of a small training."""
    torch.manual_seed(0)
    net = Net(eps, scale)
    model = torch.nn.ModuleDict({"module": net}).module if wrap else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(seed)
    with finitude.watch(model, optimizer, dump=kind, dump_steps="0", runs=str(folder), quiet=True):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    (file,) = folder.glob("*/dumps/step-000000.json")
    return file


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    root = tmp_path_factory.mktemp("dumps")
    made = {
        "plain": {},
        "again": {},
        "eps": {"eps": 1e-2},
        "scale": {"scale": 1.5},
        "data": {"seed": 1},
        "sums": {"kind": "checksums", "eps": 1e-2},
    }
    return {name: dump(root / name, **options) for name, options in made.items()}


def diff(dumps, a, b, *options):
    got = helpers.finitude(
        dumps["plain"].parent, "diff", str(dumps.get(a, a)), str(dumps.get(b, b)), "--json", *options
    )
    return got.code, json.loads(got.out) if got.out.startswith("{") else got.text()


def test_repeats_have_no_divergence(dumps):
    code, document = diff(dumps, "plain", "again")
    assert code == 0 and document["verdict"] == "same" and document["counts"]["same"] == 14, document["counts"]


def test_settings_of_a_module_are_named(dumps):
    code, document = diff(dumps, "plain", "eps")
    first = document["divergence"]
    assert code == 1 and first["kind"] == "settings" and first["a"]["name"] == "Net.n", first
    assert [text.split(", ")[1] for text in first["explained_by"]] == ["eps=1e-05", "eps=0.01"]
    assert first["a"]["file"].endswith("test_diff_of_dumps.py") and first["a"]["line"] > 0
    (output,) = first["outputs"]
    assert output["exact"] and output["max_ulps"] > 0 and 0.9 < output["cosine"] <= 1 and output["relative"] > 0


def test_checksums_compare_without_values(dumps):
    code, document = diff(dumps, "plain", "sums")
    assert code == 1 and document["divergence"]["kind"] == "settings" and not document["has_values"]
    assert document["divergence"]["a"]["name"] == "Net.n"


def test_code_between_modules_is_named(dumps):
    _, document = diff(dumps, "plain", "scale")
    first = document["divergence"]
    assert (first["kind"], first["a"]["name"], first["within"]) == ("between", "Net.head", "Net"), first


def test_other_data_is_named(dumps):
    _, document = diff(dumps, "plain", "data")
    assert document["divergence"]["kind"] == "data" and document["divergence"]["explained_by"] == ["input"]


def test_a_map_names_renamed_modules(dumps, tmp_path):
    renamed = json.loads(dumps["eps"].read_text())
    for record in renamed["trace"]["ops"]:
        record["module"] = record["module"].replace("Net.n", "Net.norms.0")
        for output in record["outputs"]:
            output["arg"] = output["arg"].replace("n.weight", "norms.0.weight").replace("n.bias", "norms.0.bias")
    file, names = tmp_path / "renamed.json", tmp_path / "names.toml"
    file.write_text(json.dumps(renamed))
    names.write_text('# in A = in B\n"n" = "norms.0"\n')
    _, document = diff(dumps, "plain", file, "--map", str(names))
    assert document["divergence"]["b"]["name"] == "Net.norms.0" and document["divergence"]["matched_by"] == "map"
    assert document["counts"]["by_structure"] == 0
    names.write_text("n\n")
    code, text = diff(dumps, "plain", file, "--map", str(names))
    assert code == 3 and "line 1 is not `NAME_IN_A = NAME_IN_B`" in text


def test_a_repeat_raises_the_noise(dumps):
    code, document = diff(dumps, "plain", "scale", "--noise", str(dumps["scale"]))
    assert code == 0 and document["verdict"] == "noise", document["divergence"]
    assert diff(dumps, "plain", "scale", f"--noise={dumps['again']}")[0] == 1


MSPROBE = {"task": "statistics", "level": "L0", "dump_data_dir": None}


def probe_of(file, folder):
    """The same dump, as msprobe writes it."""
    data = {}
    for record in json.loads(file.read_text())["trace"]["ops"]:
        name = record["module"].removeprefix("Net.")
        if record["phase"] != "forward" or name == "Net":
            continue
        value = {
            key: [
                {
                    "type": "torch.Tensor",
                    "dtype": "torch." + one["dtype"],
                    "shape": one["shape"],
                    "Max": one["max"],
                    "Min": one["min"],
                    "Mean": 0.0,
                    "Norm": one["sum_sq"] ** 0.5,
                    "requires_grad": True,
                }
                for one in record[part]
            ]
            for key, part in (("input_args", "inputs"), ("output", "outputs"))
        }
        data[f"Module.{name}.{record['op']}.forward.0"] = value
    (folder / "step0" / "rank").mkdir(parents=True)
    (folder / "step0" / "rank" / "dump.json").write_text(json.dumps({**MSPROBE, "data": data}))
    return folder


def test_a_dump_of_msprobe_compares_with_ours(dumps, tmp_path):
    folder = probe_of(dumps["eps"], tmp_path / "probe")
    code, document = diff(dumps, "plain", folder)
    assert code == 1 and document["counts"]["pairs"] == 3, document
    assert (document["divergence"]["kind"], document["divergence"]["b"]["name"]) == ("module", "n")
    code, document = diff(dumps, probe_of(dumps["plain"], tmp_path / "other"), folder / "step0" / "rank" / "dump.json")
    assert code == 1 and document["divergence"]["a"]["name"] == "n"


def test_growth_is_ranked_and_shown_as_a_tree(dumps, tmp_path):
    folder = dumps["plain"].parent
    document = json.loads(helpers.finitude(folder, "dump", "--growth", "--json", str(dumps["plain"])).out)
    ratios = [one["growth"] for one in document["records"]]
    assert ratios == sorted(ratios, reverse=True) and ratios[0] > 0
    assert [(m["name"], m["depth"]) for m in document["modules"]] == [
        ("Net", 0),
        ("Net.a", 1),
        ("Net.n", 1),
        ("Net.head", 1),
    ]
    text = helpers.finitude(folder, "dump", "--growth", str(probe_of(dumps["plain"], tmp_path / "probe"))).out
    assert "growth  record" in text and "n (LayerNorm) forward" in text and "largest  module" in text


def test_a_dump_of_msprobe_is_printed_as_records(dumps, tmp_path):
    probe = probe_of(dumps["plain"], tmp_path / "probe")
    lines = [json.loads(line) for line in helpers.finitude(tmp_path, "dump", str(probe)).out.splitlines()]
    assert [line["module"] for line in lines] == ["a", "n", "head"] and lines[0]["inputs"][0]["shape"] == [4, 8]


def test_hostile_dumps_of_msprobe_are_refused(dumps, tmp_path):
    file = tmp_path / "dump.json"
    for text in ('{"task": "statistics", "data": ', '{"task": "x", "data": ' + "[" * 99 + "]" * 99 + "}"):
        file.write_text(text)
        code, said = diff(dumps, "plain", file)
        assert code == 3 and "dump.json is " in said, said
    file.write_text(
        json.dumps({**MSPROBE, "data": {"Module.a.forward": 3, "x": [], "Functional.f.0.forward": {"output": 1}}})
    )
    assert diff(dumps, "plain", file)[0] in (1, 4)
