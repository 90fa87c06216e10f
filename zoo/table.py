"""The score table of a run of the zoo; as Markdown, beside the peers, with python -m zoo.table SCORE.json
[PEERS.json]."""

import json
import sys
from pathlib import Path

from .cases import SETS
from .judge import COLUMNS, share

MARK = {True: "+", False: "X", None: "."}


def said(result):
    """What the report claimed, short; shown where something is wrong."""
    got = result["got"]
    parts = [str(got.get("verdict"))]
    if got.get("step") is not None:
        parts.append(f"step {got['step']}")
    for name in ("sink", "phase", "op", "cause", "rows", "weights"):
        if got.get(name):
            parts.append(f"rows {got[name]}" if name == "rows" else str(got[name]))
    if got.get("line"):
        parts.append(f"line {got['line']}")
    if result["note"]:
        parts.append(result["note"][:100])
    if got.get("advisories"):
        parts.append("advisories " + ",".join(got["advisories"]))
    return " ".join(parts)


def render(results, summary, ok):
    width = max(len(r["case"].slug) for r in results)
    head = "case".ljust(width) + "  " + " ".join(c.ljust(7) for c in COLUMNS) + " cold   fix      seconds"
    lines = [head, "-" * len(head)]
    for r in results:
        marks = " ".join(MARK[r["marks"][c]].ljust(7) for c in COLUMNS)
        fix = r["got"].get("fix", "") if r["case"].positive else ""
        row = f"{r['case'].slug.ljust(width)}  {marks} {MARK[r['cold']].ljust(6)} {fix.ljust(8)} {r['seconds']:7.2f}"
        wrong = False in r["marks"].values() or r["cold"] is False
        grey = not r["case"].positive and r["got"].get("advisories") and not r["case"].expected.get("advisory_ok")
        lines.append(row + ("   " + said(r) if wrong or grey else ""))
    cold = [r["cold"] for r in results if r["cold"] is not None]
    lines += ["-" * len(head), "+ right   X wrong   . does not apply"]

    def part(name, key):
        right, of = summary[key]
        return f"{name} {right}/{of} ({100 * share(summary[key]):.1f} %)"

    lines.append(
        ", ".join(
            [
                part("alarms", "alarms"),
                f"false alarms {summary['false_alarms']}",
                part("silent", "silent"),
                part("advisories", "advisories"),
                part("steps", "step"),
            ]
        )
    )
    lines.append(
        ", ".join(
            [
                part("lines", "line"),
                part("causes", "cause"),
                part("sinks", "sink"),
                part("phases", "phase"),
                part("ops", "op"),
                part("rows", "rows"),
                part("weights", "weights"),
                part("verified fixes", "fixes"),
                f"cold agrees {sum(cold)}/{len(cold)}",
            ]
        )
    )
    lines.append("PASS" if ok else "FAIL (needs alarms 100 %, false alarms 0, silent 100 %, lines 95 %, causes 85 %)")
    return "\n".join(lines)


SHOWN = {
    "alarms": "alarms",
    "silent": "silent",
    "step": "step",
    "phase": "phase",
    "op": "op",
    "line": "line",
    "cause": "cause",
    "rows": "rows",
}
REACH = {
    "alarms": 1.0,
    "silent": 1.0,
    "step": 1.0,
    "phase": 0.97,
    "op": 0.95,
    "line": 0.95,
    "cause": 0.92,
    "rows": 0.90,
}


def markdown_row(title, summary):
    cells = [f"{summary[key][0]}/{summary[key][1]}" if summary[key][1] else "" for key in SHOWN]
    return "| " + " | ".join([title, *cells]) + " |"


def markdown(score, peers=None):
    """The table of a run as Markdown: a line a set, all cases, what is aimed at, and the peers on the same cases."""
    lines = ["| cases | " + " | ".join(SHOWN.values()) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    lines += [markdown_row(title, score["sets"][name]) for name, title in SETS.items() if name in score["sets"]]
    lines.append(markdown_row("**all**", score["summary"]))
    share_of_all = [f"{100 * share(score['summary'][key]):.1f} %" for key in SHOWN]
    lines.append("| share | " + " | ".join(share_of_all) + " |")
    lines.append("| reach | " + " | ".join(f"{100 * REACH[key]:.0f} %" for key in SHOWN) + " |")
    for name in peers["cases"][0]["marks"] if peers else ():
        lines.append(peer_row(name, peers["cases"]))
    return "\n".join(lines)


def peer_row(name, rows):
    """A peer names no phase, cause or rows; a case that wants an advisory is not counted as an alarm."""

    def count(kept, mark):
        marks = [row["marks"][name][mark] for row in rows if kept(row)]
        return f"{sum(marks)}/{len(marks)}"

    positive = count(lambda r: r["expect"] == "alarm", "verdict")
    silent = count(lambda r: r["expect"] == "silent", "verdict")
    step = count(lambda r: r["expect"] != "silent", "step")
    line = count(lambda r: r["expect"] != "silent", "line")
    return f"| {name} | {positive} | {silent} | {step} | | | {line} | | |"


def main(argv=None):
    files = argv if argv is not None else sys.argv[1:]
    if not 1 <= len(files) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(markdown(*(json.loads(Path(file).read_text()) for file in files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
