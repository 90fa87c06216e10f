"""What knows nothing of a run: options, places, texts of reports as JSON, versions of Python and torch, what processes
hand down."""

import os

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the folder of the package, with the engine in it
