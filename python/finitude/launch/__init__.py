"""How a watched process comes about: the script in this one, a launcher's, a child of either; a capsule put into a
program."""
