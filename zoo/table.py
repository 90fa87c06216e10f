"""The score table of a run of the zoo."""
from .judge import COLUMNS, share

MARK = {True: "+", False: "X", None: "."}


def said(result):
    """What the report claimed, short; shown where something is wrong."""
    got = result["got"]
    parts = [str(got.get("verdict"))]
    if got.get("step") is not None:
        parts.append(f"step {got['step']}")
    for name in ("sink", "phase", "op", "cause", "weights"):
        if got.get(name):
            parts.append(str(got[name]))
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

    lines.append(", ".join([part("alarms", "alarms"), f"false alarms {summary['false_alarms']}",
                            part("silent", "silent"), part("advisories", "advisories"), part("steps", "step")]))
    lines.append(", ".join([part("lines", "line"), part("causes", "cause"), part("sinks", "sink"),
                            part("phases", "phase"), part("ops", "op"), part("weights", "weights"), part("verified fixes", "fixes"),
                            f"cold agrees {sum(cold)}/{len(cold)}"]))
    lines.append("PASS" if ok else "FAIL (needs alarms 100 %, false alarms 0, silent 100 %, lines 95 %, causes 85 %)")
    return "\n".join(lines)
