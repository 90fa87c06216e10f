"""The options of `finitude export`; in a file without imports, so that completion stays fast."""

FORMATS = ("csv", "jsonl", "parquet", "tensorboard", "wandb", "mlflow", "png", "prometheus", "dcp")
OPTIONS = ("--to", "--output", "--quiet")
HELP = """usage: finitude export [RUN] --to FORMAT [-o PATH] [-q]
Writes the series of a run (loss, norms, largest gradients and weights) in the
form that another tool reads; of the newest run where none is named. RUN may be
running; its steps so far are written.

  --to FORMAT         csv          a row for each point
                      jsonl        the same as JSON lines
                      prometheus   the newest value of each series, as text
                      parquet      needs the package pyarrow
                      tensorboard  PATH is a log directory
                      wandb        needs wandb; an offline run in PATH, which
                                   `wandb sync` sends
                      mlflow       needs mlflow; PATH is a store of runs
                      png          needs matplotlib; a picture of loss, norm
                                   and learning rate with what happened
                      dcp          weights and optimizer state with which the
                                   last bad step began, as a checkpoint of
                                   torch.distributed.checkpoint in PATH; RUN may
                                   be a capsule, or step-NNNNNN.json
  -o, --output PATH   where it goes; standard output by default and as - (csv,
                      jsonl, prometheus), else it has to be named
  -q, --quiet         no notes on stderr, only failures

Exit codes: 0 done, 2 usage, 3 unreadable or corrupt, or without series,
4 a package is missing.
"""
