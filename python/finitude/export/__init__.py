"""`finitude export`: the series of a run in the form that another tool reads. Loads no torch."""
