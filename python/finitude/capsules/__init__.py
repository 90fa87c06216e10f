"""The folder that a bad step leaves: written, packed, put into the objects of another program."""
