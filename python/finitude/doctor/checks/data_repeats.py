"""Do loaders give data that differs from step to step?"""

from __future__ import annotations

from ..registry import check, warn

FEWEST = 3  # passes, groups or steps
FEW_BATCHES, FEW_SAMPLES, FEW_LABELS, FEW_LOSSES = 2, 8, 8, 5


@check("P30", "data-repeats", "steps")
def repeats(steps):
    """A loader that is begun again in each step, so that all get its first batch; one that shuffles and gives two
    passes in the same order; one whose workers each give the same batches; a batch whose rows are all the same sample;
    a generator that each step seeds with the same number; batches of one class each. Full batches, batches that the
    script keeps on purpose, and a loader that does not shuffle, are no fault."""
    facts = steps.get("batches", {})
    by_loader = {}
    for one in facts.get("given", ()):
        by_loader.setdefault(one["loader"], []).append(one)
    for given in by_loader.values():
        for look in (_first_again, _same_order, _by_each_worker, _same_rows):
            yield from look(steps, given)
    yield from _seeded(steps, facts.get("seeds", ()))
    yield from _one_class(steps)


def _first_again(steps, given):
    first = given[0]
    passes = {one["pass"] for one in given}
    is_begun = len(passes) >= FEWEST and all(one["position"] == 0 for one in given) and first["batches"] != 1
    if is_begun and first["bits"] and len({one["bits"] for one in given}) == 1:
        yield warn(
            f"a loader of {first['batches'] or 'several'} batches was begun again {len(passes)} times and gave "
            f"the first "
            "batch each time: the steps train on one batch",
            "make the iterator once before the loop: for batch in loader",
            steps.at(given[-1]),
            passes=len(passes),
            bits=first["bits"].split()[:4],
        )


def _same_order(steps, given):
    first = given[0]
    if not first["shuffles"] or first["samples"] < FEW_SAMPLES or first["batches"] < FEW_BATCHES:
        return
    orders = {}
    for one in given:
        orders.setdefault(one["pass"], []).append(one["order"])
    whole = [o for o in orders.values() if len(o) == first["batches"] and all(o)]
    if len(whole) > 1 and len(set(map(tuple, whole))) == 1:
        yield warn(
            f"a loader that shuffles gave its {first['samples']} samples in the same order in {len(whole)} passes",
            "seed once, before the first epoch; DistributedSampler: sampler.set_epoch(epoch) in each",
            steps.at(given[-1]),
            passes=len(whole),
        )


def _by_each_worker(steps, given):
    first = given[0]
    n = first["workers"]
    if not first["iterable"] or n < 2:
        return
    bits = [one["bits"] for one in given if one["pass"] == first["pass"]]
    groups = [bits[i : i + n] for i in range(0, len(bits) - n + 1, n)]
    if len(groups) >= 2 and all(g[0] and len(set(g)) == 1 for g in groups) and len({g[0] for g in groups}) > 1:
        yield warn(
            f"each of {n} workers gives the same batches: every sample comes {n} times",
            "torch.utils.data.get_worker_info() in __iter__, and only the part of this worker",
            steps.at(first),
            workers=n,
        )


def _same_rows(steps, given):
    found = [one for one in given if one["same_rows"] and one["distinct"] > 1]
    if found and len(found) == len(given):
        yield warn(
            f"all rows of a batch are the same, in {len(found)} batches of samples with different indices",
            "look at __getitem__: it returns the same sample for each index",
            steps.at(found[0]),
            batches=len(found),
        )


def _seeded(steps, seeds):
    by_value = {}
    for one in seeds:
        by_value.setdefault(one["value"], {}).setdefault(one["steps"], one)
    for value, found in by_value.items():
        counts = sorted(found)
        if len(counts) >= FEWEST and counts == list(range(counts[0], counts[0] + len(counts))):
            yield warn(
                f"torch.manual_seed({value}) is called in each of {len(counts)} steps: their random numbers (dropout, "
                "noise, sampling) are the same",
                "seed once, before the loop",
                steps.at(found[counts[-1]]),
                steps=len(counts),
            )


def _one_class(steps):
    by_place = {}
    for one in steps.losses:
        if one["kind"] == "labels" and one.get("loader") and one["labels"] >= FEW_LABELS and one["classes"] > 1:
            by_place.setdefault(tuple(one["at"]), []).append(one)
    for at, found in by_place.items():
        if len(found) >= FEW_LOSSES and all(one["min"] == one["max"] for one in found):
            values = sorted({one["min"] for one in found})
            yield warn(
                f"each of {len(found)} batches holds labels of one class ({', '.join(map(str, values[:4]))} of "
                f"{found[0]['classes']})",
                "shuffle=True, or look at how labels are made",
                at,
                batches=len(found),
                labels=values[:20],
            )
