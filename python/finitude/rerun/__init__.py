"""Second runs: by calling, in place, in a second process, of all ranks; and what earlier, later or other steps have to
do with it."""
