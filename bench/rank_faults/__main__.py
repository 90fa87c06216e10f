"""See sweep.py. Its processes import that by name, which they cannot import this module by."""

import sys

from bench.rank_faults import sweep

sys.exit(sweep.main(sys.argv[1:]))
