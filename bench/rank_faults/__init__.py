"""Faults of ranks, in each phase of what they do together about a bad step."""
