"""Seeds every generator of this process that a training draws from."""

from __future__ import annotations

import random
import sys

MOST = 2**32  # numpy's legacy generator takes no larger seed


def seed_all(seed: int) -> dict[str, int]:
    """Seeds Python's `random`, numpy's global generator and torch's default generators with one number.

    torch's are those of the CPU and of every GPU; one that is not in use yet is seeded when it is. numpy is seeded
    where it is installed, modulo 2**32. DataLoader workers need nothing more: each seeds `random`, numpy and torch from
    a number that the process of the loader draws from `generator=`, or from torch's default generator. Not seeded: a
    Generator that the program makes itself (`torch.Generator`, `numpy.random.default_rng()`), and the hash of strings
    (PYTHONHASHSEED, which is read when Python starts).

    Args:
        seed: from 0 to 2**64 - 1.

    Returns:
        What was seeded, with the number it was given: "random", "numpy", "torch", "torch.cuda" where a GPU is there.

    Raises:
        ValueError: the seed is out of range.

    Call it before the model is made, from one thread.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is a whole number from 0 to 2**64 - 1, not {seed}")
    import torch

    random.seed(seed)
    done = {"random": seed}
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(seed % MOST)
        done["numpy"] = seed % MOST
    torch.manual_seed(seed)
    done["torch"] = seed
    if "torch.cuda" in sys.modules and torch.cuda.is_available():
        done["torch.cuda"] = seed
    return done
