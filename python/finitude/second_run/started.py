"""How the program was started, for starting it again."""

import os
import random
import sys
import time


class Start:
    """What a second process needs to start the same program from the same state."""

    def __init__(self, command):
        self.command = command        # None: nothing that is started would do the same
        self.plain = None             # the same program without us
        self.cwd = os.getcwd()
        self.monotonic = time.monotonic()
        self.hash_seed = os.environ.get("PYTHONHASHSEED")
        state = random.getstate()
        self.seeds = {"python": [state[0], list(state[1]), state[2]], "numpy": None}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, position, has_gauss, cached = numpy.random.get_state()
            self.seeds["numpy"] = [kind, [int(k) for k in keys], position, has_gauss, cached]


def restore_seeds(seeds):
    version, state, gauss = seeds["python"]
    random.setstate((version, tuple(state), gauss))
    if seeds["numpy"] is not None:
        import numpy

        kind, keys, position, has_gauss, cached = seeds["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))
