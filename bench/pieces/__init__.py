"""The budget of a step in nanoseconds, piece by piece. `python -m bench.pieces` writes docs/overhead-pieces.md."""
