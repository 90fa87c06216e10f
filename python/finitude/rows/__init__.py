"""`finitude rows`: which rows of the data sets the steps of a run were made of. Loads no torch."""
