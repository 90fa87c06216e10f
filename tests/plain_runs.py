"""Runs scripts as plain Python would, one after the other: what a watched run is compared with."""

import helpers


def plain_runs(folder, jobs):
    """{name: [script, argument ...]} run in `folder`; returns {name: (exit code, stdout)}."""
    done = {name: helpers.plain(folder, *words) for name, words in jobs.items()}
    return {name: (one.code, one.out) for name, one in done.items()}
