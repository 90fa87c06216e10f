"""python -m bench.agreement [--exchanges N] [--rounds N]

What one exchange of two ranks before a step costs (finitude/program/side_group.py): two processes on this machine, by
gloo over 127.0.0.1. Prints microseconds of each round, and their median.
"""

import argparse
import multiprocessing
import socket
import statistics

from .exchange import rank_of


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--exchanges", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=7)
    given = options.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    words = port, given.exchanges, given.rounds, results
    both = [context.Process(target=rank_of, args=(rank, *words)) for rank in (0, 1)]
    for one in both:
        one.start()
    rounds = [results.get(timeout=120) for _ in range(given.rounds + 1)][1:]
    for one in both:
        one.join()
    shown = ", ".join(f"{value:.0f}" for value in rounds)
    print(f"median {statistics.median(rounds):.0f} us of {given.rounds} rounds: {shown}")


if __name__ == "__main__":
    main()
