"""Adds up the JUnit files of a test run and prints `N passed, N failed` as the last line.

usage: count_tests.py DIRECTORY [RESULT=TITLE ...], where each RESULT=TITLE is a step that failed. The exit code is 1
where anything failed. A failed step whose RESULT.xml, or RESULT.*.xml, is missing or shows no failed test (a build that
broke, a crash before the first test) counts as one failure.
"""

import itertools
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(path):
    """(passed, names of the failed, skipped) of one JUnit file, as written by ctest or pytest."""
    passed, failed, skipped = 0, [], 0
    for case in ElementTree.parse(path).iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed.append(name)
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def result_of(path):
    """asan of asan.0.xml: one result may have been written by several processes."""
    return path.name.partition(".")[0]


def main(directory, failed_steps):
    passed, failed, skipped = 0, [], 0
    explained = set()  # results whose own tests show why the step failed
    for result, paths in itertools.groupby(sorted(pathlib.Path(directory).glob("*.xml")), key=result_of):
        counts = [count(path) for path in paths]
        more_passed, more_skipped = sum(one[0] for one in counts), sum(one[2] for one in counts)
        more_failed = [name for one in counts for name in one[1]]
        passed, skipped = passed + more_passed, skipped + more_skipped
        failed += [f"{result}: {name}" for name in more_failed]
        if more_failed:
            explained.add(result)
        print(f"  {result:<16} {more_passed} passed, {len(more_failed)} failed, {more_skipped} skipped")
    for step in failed_steps:
        result, _, title = step.partition("=")
        if result not in explained:
            failed.append(f"{title} (the step itself)")
    if not passed and not failed:
        failed.append("no test ran")
    for name in failed:
        print(f"  FAILED {name}")
    if skipped:
        print(f"  {skipped} skipped")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
