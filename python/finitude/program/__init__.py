"""The user's program, looked at: its optimizers, generators, files, queues, names and cells; which rank of how many it
is."""
