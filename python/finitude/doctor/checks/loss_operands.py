"""Is a loss given what it takes?"""

from __future__ import annotations

from ..registry import bad, check, warn

WORDS = {
    "softmax twice": (
        bad,
        "cross-entropy takes logits and was given probabilities: {n} losses of rows that sum to 1, so a softmax "
        "of a softmax",
        "give it the output of the last linear layer",
    ),
    "no logarithm": (
        bad,
        "nll_loss takes logarithms of probabilities and was given probabilities: {n} losses of rows that sum to 1",
        "log_softmax, or cross_entropy of the logits",
    ),
    "over the batch": (
        bad,
        "a loss of classes was given a softmax over the rows of the batch: {n} times the columns sum to 1, and the "
        "rows do not",
        "dim=-1, the dimension of the classes",
    ),
    "sigmoid twice": (
        bad,
        "binary_cross_entropy_with_logits takes logits and was given the output of a sigmoid, {n} times",
        "give it what the sigmoid was given",
    ),
    "broadcast": (
        warn,
        "a column of {size} predictions meets a row of {size} targets: the result has {size} x {size} "
        "differences, {n} times",
        "squeeze(1) the one, or unsqueeze(1) the other",
    ),
    "permutation": (
        warn,
        "inputs and targets of a loss were put in order by two different permutations of {size}, {n} times",
        "one torch.randperm for both",
    ),
    "loader": (
        warn,
        "inputs and targets of a loss come from two loaders over {size} samples that give them in different "
        "orders, {n} times",
        "one loader over a data set of pairs (torch.utils.data.TensorDataset)",
    ),
}


@check("P29", "loss-operands", "steps")
def operands(steps):
    """Probabilities where a loss takes logits (a softmax or sigmoid twice) or their logarithm; a softmax over the batch
    in place of the classes; a column of predictions
    minus a row of targets, which broadcasts to all pairs; inputs and targets that different permutations or loaders put
    in order."""
    by_place = {}
    for one in steps.get("operands", ()):
        by_place.setdefault((one["what"], tuple(one["at"])), []).append(one)
    for (what, at), found in by_place.items():
        make, text, advice = WORDS[what]
        size = found[0].get("rows") or found[0].get("size") or found[0].get("classes")
        yield make(text.format(n=len(found), size=size), advice, at, times=len(found), size=size)
