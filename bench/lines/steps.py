"""python bench/lines/steps.py KIND off|gate|all STEPS [list|loader]: that many steps of one model, for valgrind to
count."""

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
from bench.overhead import arms, models, worker  # noqa: E402


class Once:
    """The turns of a loop that has one."""

    def __init__(self, steps):
        self.left = [steps, 0]

    def next(self):
        return self.left.pop(0), None, None, None, None


def main(kind, state, steps, batches="list"):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        job = models.Job(kind, "adamw", loader=batches == "loader")
        job.joint = False
        finitude = arms.Finitude(job, pathlib.Path(folder))
        if state != "off":
            finitude.on(gate_only=state == "gate")
        worker.train(job, Once(int(steps)))
    os._exit(0)  # the end of the interpreter is not the same length twice


if __name__ == "__main__":
    main(*sys.argv[1:])
