"""What watching costs a training step, beside what people would use instead. `python -m bench.overhead` writes
docs/overhead.md.

cells.py        which model, optimizer, threads; how long each is measured
worker.py       one cell in a process of its own: the training loop, and which tool is on in which steps
models.py       the trainings
arms.py         finitude, on and off
contenders.py   what others use
stats.py        medians, intervals, the verdict on a cell
page.py         the page; page_*.py: its tables, goals and explanations
regress.py      this tree against another revision
"""
