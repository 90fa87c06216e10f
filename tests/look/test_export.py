"""`finitude export`: what each form holds, read back by what reads it."""

import csv
import io
import json
import os

import pytest

import helpers
import made_stores
from finitude.doctor import tfevents
from finitude.export import command, options


@pytest.fixture
def run(tmp_path):
    return made_stores.run(tmp_path / "run-1", steps=50, parameters=2)


def export(run, *words):
    got = helpers.finitude(run.parent, "export", run.name, *words)
    assert got.code == 0, got.text()
    return got.out


def test_csv_has_a_row_for_each_point(run):
    rows = list(csv.DictReader(io.StringIO(export(run, "--to", "csv"))))
    assert len(rows) == 50 * (5 + 4)
    assert rows[0]["quantity"] == "loss" and rows[0]["parameter"] == "" and float(rows[0]["last"]) > 2
    assert rows[-1]["parameter"] == "layers.0.bias" and rows[-1]["step"] == rows[-1]["last_step"] == "49"


def test_jsonl_goes_into_a_file_whole(run):
    assert export(run, "--to=jsonl", "-o", "out.jsonl") == ""
    rows = [json.loads(line) for line in (run.parent / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 450 and rows[0]["optimizer"] == "AdamW" and rows[0]["rank"] == 0
    assert not list(run.parent.glob("*.tmp"))


def test_prometheus_has_the_newest_values(run):
    text = export(run, "--to", "prometheus")
    assert 'finitude_step{run="run-1",rank="0",optimizer="AdamW"} 49' in text
    assert "# TYPE finitude_loss gauge\n" in text
    assert (
        'finitude_parameter_weight_absmax{run="run-1",rank="0",optimizer="AdamW",parameter="layers.0.weight"} ' in text
    )


def test_a_name_cannot_leave_its_label(run):
    with made_stores.opened(run) as db:
        db.execute("UPDATE series SET parameter = ? WHERE id = 6", ('a"} 1\nfinitude_loss 7\\',))
    text = export(run, "--to", "prometheus")
    assert 'parameter="a\\"} 1?finitude_loss 7\\\\"' in text and "\nfinitude_loss 7" not in text


def test_tensorboard_is_read_back_by_the_doctor(run):
    export(run, "--to", "tensorboard", "-o", "board")
    (path,) = (run.parent / "board" / "run-1").iterdir()
    with path.open("rb") as f:
        found = [one for data in tfevents.records(f) for one in tfevents.scalars(data)]
    assert len(found) == 450 and found[0][:2] == (0, "loss/AdamW") and found[49][0] == 49
    assert found[0][2] == pytest.approx(2.58, rel=1e-6)


def test_tensorboard_reads_its_files(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    export(run, "--to", "tensorboard", "-o", "board")
    seen = accumulator.EventAccumulator(str(run.parent / "board" / "run-1"))
    seen.Reload()
    assert "loss/AdamW" in seen.Tags()["scalars"] and len(seen.Scalars("loss/AdamW")) == 50
    assert seen.Scalars("loss/AdamW")[-1].step == 49


def test_parquet_has_typed_columns(run):
    parquet = pytest.importorskip("pyarrow.parquet")
    export(run, "--to", "parquet", "-o", "out.parquet")
    table = parquet.read_table(run.parent / "out.parquet")
    assert table.num_rows == 450 and str(table.schema.field("step").type) == "int64"
    assert table.column("last")[0].as_py() == pytest.approx(2.58)


@pytest.mark.slow
def test_wandb_leaves_an_offline_run(run):
    pytest.importorskip("wandb")
    export(run, "--to", "wandb", "-o", "wb")
    found = list((run.parent / "wb").rglob("*.wandb"))
    assert len(found) == 1 and found[0].stat().st_size > 1000


@pytest.mark.slow
def test_mlflow_has_every_step(run):
    mlflow = pytest.importorskip("mlflow")
    export(run, "--to", "mlflow", "-o", "ml")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=f"file:{run.parent / 'ml'}")
    (made,) = client.search_runs([client.get_experiment_by_name("finitude").experiment_id])
    history = client.get_metric_history(made.info.run_id, "loss/AdamW")
    assert made.info.run_name == "run-1" and sorted(m.step for m in history) == list(range(50))


@pytest.mark.parametrize("ranks", [1, 2])
def test_png_is_a_picture(tmp_path, ranks):
    image = pytest.importorskip("matplotlib.image")
    for rank in range(ranks):
        made_stores.run(tmp_path / "run" / (f"rank-{rank}" if ranks > 1 else ""), steps=50, parameters=2)
    export(tmp_path / "run", "--to", "png", "-o", "out.png")
    pixels = image.imread(tmp_path / "out.png")
    assert pixels.shape == (900, 1200, 4) and pixels.min() < 0.5 and not list(tmp_path.glob("*.tmp"))


def test_png_marks_what_happened(run):
    image = pytest.importorskip("matplotlib.image")
    export(run, "--to", "png", "-o", "with.png")
    (run / "events.jsonl").unlink()
    export(run, "--to", "png", "-o", "without.png")
    red = [
        int(((p[..., 0] > 0.7) & (p[..., 1] < 0.3) & (p[..., 2] < 0.3)).sum())
        for p in (image.imread(run.parent / f"{name}.png") for name in ("with", "without"))
    ]
    assert red[0] > 500 and red[1] == 0


def test_a_missing_package_is_named(run, monkeypatch, capsys):
    def missing(*_):
        raise ModuleNotFoundError("no", name="pyarrow.parquet")

    monkeypatch.setitem(command.FILES, "parquet", (missing, "pyarrow"))
    assert command.main([str(run), "--to", "parquet", "-o", "x"], lambda quiet: ([], 3), lambda *_: (0, [])) == 4
    assert capsys.readouterr().err == "finitude: --to parquet needs the package pyarrow: pip install pyarrow\n"


def test_a_package_that_fails_is_reported(run, monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("of its own")

    monkeypatch.setitem(command.FILES, "wandb", (fails, "wandb"))
    assert command.main([str(run), "--to", "wandb", "-o", "x"], lambda quiet: ([], 3), lambda *_: (0, [])) == 4
    assert capsys.readouterr().err == "finitude: wandb could not write it: RuntimeError: of its own\n"


def test_ranks_have_names_of_their_own(tmp_path):
    for rank in (0, 1):
        folder = made_stores.store(tmp_path / "run" / f"rank-{rank}", steps=5, parameters=0)
        with made_stores.opened(folder) as db:
            db.execute("UPDATE info SET value = ? WHERE key = 'rank'", (str(rank),))
    rows = list(csv.DictReader(io.StringIO(export(tmp_path / "run", "--to", "csv"))))
    assert [row["rank"] for row in rows] == ["0"] * 25 + ["1"] * 25
    export(tmp_path / "run", "--to", "tensorboard", "-o", "board")
    assert sorted(os.listdir(tmp_path / "board")) == ["run-rank0", "run-rank1"]


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "--to takes"),
        (["--to", "xml"], "not 'xml'"),
        (["--to", "parquet"], "needs -o PATH"),
        (["--to"], "needs a value"),
        (["--to", "csv", "a", "b"], "one run at a time"),
    ],
    ids=str,
)
def test_wrong_usage_is_2(tmp_path, words, says):
    got = helpers.finitude(tmp_path, "export", *words)
    assert got.code == 2 and says in got.err and got.out == "", got.text()


def test_what_cannot_be_read_is_3(run, tmp_path):
    for name in ("nothing", "run-1"):
        if name == "run-1":
            (run / "store.sqlite").write_bytes(b"damaged")
        got = helpers.finitude(tmp_path, "export", name, "--to", "csv")
        assert got.code == 3 and got.err.startswith(f"finitude: {name}: it is no"), got.text()


def test_what_cannot_be_written_is_4(run):
    got = helpers.finitude(run.parent, "export", run.name, "--to", "csv", "-o", "no/such/folder/out.csv")
    assert got.code == 4 and "cannot write" in got.err, got.text()


def test_the_newest_run_is_taken(run, tmp_path):
    made_stores.run(tmp_path / "finitude-runs" / "20260102-000000-b-1", steps=3, parameters=0)
    got = helpers.finitude(tmp_path, "export", "--to", "csv")
    assert got.code == 0 and len(got.out.splitlines()) == 1 + 15 and "20260102-000000-b-1" in got.err, got.text()


def test_every_format_is_in_the_help():
    assert all(form in options.HELP for form in options.FORMATS)
    assert {*command.TEXTS, *command.FILES, "prometheus", "dcp"} == set(options.FORMATS)
