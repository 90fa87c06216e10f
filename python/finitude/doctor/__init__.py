"""`finitude doctor`: what is wrong with a training before it runs, in its first steps, and in what a run left behind.

A check is a function with a decorator; those of a file of yours are loaded by `finitude doctor --rules my_checks.py`:

    from finitude.doctor import check, warn

    @check("X1", "no-warmup", "source")
    def no_warmup(source):
        "A script that makes no learning-rate scheduler."
        if not source.calls("torch.optim.lr_scheduler.*"):
            yield warn("the learning rate is the same from the first step on", "ramp it up over the first steps")

Nothing here imports torch: the source is only parsed, and the first steps run in a process of their own.
"""

from .registry import Finding, all_checks, bad, check, note, table, warn

__all__ = ["Finding", "all_checks", "bad", "check", "note", "table", "warn"]
