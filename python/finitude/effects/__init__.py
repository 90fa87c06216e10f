"""Side effects: what a second run must not do twice, or must put back: objects, iterators, files, output."""
