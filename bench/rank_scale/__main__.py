"""python -m bench.rank_scale [--ranks N ...]

What one bad step costs with many ranks, on one machine: the real code of the ranks' decisions and of the merged report,
with a store and collective operations of this process (see ranks.py, reports.py). Prints a table.
"""

import argparse
import statistics

from . import ranks, reports

NAMES = ("vote", "second run", "exchange")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", type=int, nargs="+", default=[2, 64, 512, 4096])
    given = options.parse_args()
    print("| ranks | what | time | store operations of a rank | bytes a rank sends: median, most |")
    print("|---|---|---|---|---|")
    for size in given.ranks:
        for name, cost in zip(NAMES, (ranks.vote(size), ranks.second_run(size), ranks.exchange(size))):
            asked = f"{statistics.median(cost.operations):.0f}, {max(cost.operations)}"
            sent = f"{statistics.median(cost.sent):.0f}, {max(cost.sent)}"
            print(f"| {size} | {name} | {cost.seconds:.2f} s | {asked} | {sent} |", flush=True)
    print()
    print("| ranks | reports of all ranks | merged | time |")
    print("|---|---|---|---|")
    with reports.sample() as rank_folders:
        for size in given.ranks:
            cost = reports.merge(rank_folders, size)
            print(
                f"| {size} | {cost.read / 1e6:.2f} MB | {cost.written / 1e3:.0f} kB | {cost.seconds:.2f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
