"""Forms that a package writes, where it is installed: Parquet, W&B and MLflow. Nothing is sent anywhere."""

from __future__ import annotations

import os
from typing import Any

from . import texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .points import Process

_BATCH = 1000  # metrics that MLflow takes at once
_ROWS = 100_000  # of a group in a Parquet file


def write_parquet(path: str, run: str, processes: Sequence[Process]) -> str:
    """A row for each point, as CSV has it; null where there is no finite value. Raises ImportError, OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [pa.int32(), *[pa.string()] * 3, *[pa.int64()] * 2, *[pa.float64()] * 5]
    schema = pa.schema(list(zip(texts.COLUMNS, kinds)), metadata={"run": run})
    with pq.ParquetWriter(path, schema, compression="zstd") as out:
        batch: list[tuple[Any, ...]] = []

        def flush():
            columns = [pa.array(column, kind) for column, kind in zip(zip(*batch), kinds)]
            out.write_table(pa.Table.from_arrays(columns, schema=schema))
            batch.clear()

        for row in texts.rows(processes):
            batch.append(row)
            if len(batch) == _ROWS:
                flush()
        if batch:
            flush()
    return path


def write_wandb(directory: str, run: str, processes: Sequence[Process]) -> str:
    """An offline run. Its steps have to grow, so all series are put into one order first. Raises ImportError,
    OSError."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    os.makedirs(directory, exist_ok=True)
    by_step: dict[int, dict[str, float]] = {}
    for process in processes:
        for series, points in process.points():
            name = process.name_of(series)
            for p in points:
                if p.last is not None:
                    by_step.setdefault(p.last_step, {})[name] = p.last
    settings = wandb.Settings(mode="offline", console="off", x_disable_stats=True, x_disable_meta=True)
    out: Any = wandb.init(
        project="finitude", name=run, dir=directory, config=dict(processes[0].info), settings=settings
    )
    for step in sorted(by_step):
        out.log(by_step[step], step=step)
    folder = os.path.dirname(out.dir)
    out.finish()
    return folder


def write_mlflow(directory: str, run: str, processes: Sequence[Process]) -> str:
    """A run of the experiment "finitude" in a store of files. Raises ImportError, OSError."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # from version 3 on it asks whether that is meant
    from mlflow import MlflowClient
    from mlflow.entities import Metric, RunTag

    os.makedirs(directory, exist_ok=True)
    client = MlflowClient(tracking_uri="file:" + os.path.abspath(directory))
    experiment = client.get_experiment_by_name("finitude")
    number = experiment.experiment_id if experiment else client.create_experiment("finitude")
    made = client.create_run(number, run_name=run)
    tags = [RunTag(f"finitude.{key}", value) for key, value in processes[0].info.items()]
    client.log_batch(made.info.run_id, tags=tags)
    for process in processes:
        for series, points in process.points():
            name = _plain(process.name_of(series))
            if series.parameter:  # a name that goes on is a folder in that store, and gradient_absmax/AdamW a file
                name = f"parameters/{name}"
            metrics = [
                Metric(name, p.last, round((p.time or 0.0) * 1000), p.last_step) for p in points if p.last is not None
            ]
            for at in range(0, len(metrics), _BATCH):
                client.log_batch(made.info.run_id, metrics=metrics[at : at + _BATCH])
    client.set_terminated(made.info.run_id)
    return directory


def _plain(name):
    """Of the characters that a metric of MLflow may have."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. /") else "_" for c in name)[:250]
