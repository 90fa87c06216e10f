"""Judges one report (schema 1) against what a case expects, column by column, and sums a run up."""

import os

COLUMNS = ("verdict", "step", "sink", "phase", "op", "line", "cause", "rows", "weights", "exit")


def plain_op(name):
    """'aten::log.out' and 'log' are the same op as 'aten::log'."""
    name = str(name or "").replace("aten.", "aten::", 1)
    if "::" not in name:
        name = "aten::" + name
    return name.split(".")[0]


def same_file(path, script):
    return not path or os.path.realpath(path) == os.path.realpath(script)


def birth_lines(birth, script):
    """The line of the birth and, for a backward birth, that of the forward op it belongs to."""
    places = [birth, birth.get("forward") or {}]
    return [p["line"] for p in places if p.get("line") and same_file(p.get("file"), script)]


def first_alarm(report):
    alarms = report.get("alarms") or []
    return alarms[0] if report.get("outcome") == "alarm" and alarms else None


def fitting_advisory(report, expected):
    """The advisory that comes nearest: one at the expected step, with the cause that is looked for."""

    def rank(advisory):
        cause = (advisory.get("cause") or {}).get("class")
        return cause not in expected["cause"], advisory.get("step") != expected.get("step")

    advisories = [a for a in report.get("advisories") or [] if (a.get("cause") or a.get("births"))]
    return min(advisories, key=rank, default=None)


def judge_finding(finding, case, marks, got):
    expected = case.expected
    birth = (finding.get("births") or [{}])[0]
    sink = (finding.get("sink") or {}).get("kind")
    cause = (finding.get("cause") or {}).get("class")
    got.update(
        step=finding.get("step"),
        sink=sink,
        phase=birth.get("phase"),
        op=birth.get("op"),
        line=birth.get("line"),
        cause=cause,
        rows=birth.get("rows"),
        weights=finding.get("weights"),
    )
    fix = finding.get("fix") or {}
    # How far the fix got: reported, not scored, since whether one can be verified is no matter of right or wrong.
    got["fix"] = "verified" if fix.get("verified") else "tried" if fix.get("tried") else "untried" if fix else "none"
    got["diff"] = bool(fix.get("diff"))
    marks["step"] = finding.get("step") == expected["step"]
    if "micro_batch" in expected:
        marks["step"] = marks["step"] and finding.get("micro_batch") == expected["micro_batch"]
    if "phase" in expected:
        marks["phase"] = birth.get("phase") in expected["phase"]
    if expected.get("ops"):
        marks["op"] = plain_op(birth.get("op")) in {plain_op(op) for op in expected["ops"]}
    if case.lines:
        marks["line"] = any(line in case.lines for line in birth_lines(birth, case.script))
    marks["cause"] = cause in expected["cause"]
    if "rows" in expected:
        marks["rows"] = sorted(birth.get("rows") or []) == sorted(expected["rows"])
    if "sink" in finding and "sink" in expected:
        marks["sink"] = sink in expected["sink"]


def weights_expected(expected):
    """Stopped by the gate means clean; where the optimizer itself made the value, or nothing was in danger, a case
    says."""
    if "weights" in expected:
        return expected["weights"]
    gated = set(expected.get("sink", [])) <= {"loss", "gradient"} and not expected.get("harmless")
    return ["clean"] if gated and expected["expect"] == "alarm" else None


def judge(report, exit_code, case):
    """Marks per column (True, False, or None where it does not apply) and what the report said."""
    marks, got = dict.fromkeys(COLUMNS), {}
    expected = case.expected
    if not isinstance(report, dict) or report.get("schema") != 1:
        marks["verdict"] = False
        got["verdict"] = "no report"
        if case.positive:
            judge_finding({}, case, marks, got)
        return marks, got
    alarm = first_alarm(report)
    got["verdict"] = report.get("outcome")
    got["advisories"] = sorted({str(a.get("kind")) for a in report.get("advisories") or []})
    got["exit"] = exit_code
    if not case.positive:
        marks["verdict"] = report.get("outcome") == "clean" and not report.get("alarms")
        marks["exit"] = exit_code == 0
        return marks, got
    if expected["expect"] == "advisory" and not (alarm and expected.get("alarm_ok")):
        advisory = fitting_advisory(report, expected)
        marks["verdict"] = alarm is None and advisory is not None
        if advisory is not None:
            got["verdict"] = "advisory"
        judge_finding(alarm or advisory or {}, case, marks, got)
        marks["exit"] = exit_code == 0
        return marks, got
    marks["verdict"] = alarm is not None
    judge_finding(alarm or {}, case, marks, got)
    accepted = weights_expected(expected)
    if accepted:
        marks["weights"] = (alarm or {}).get("weights") in accepted
    if alarm is not None:
        marks["exit"] = (exit_code == 0) == bool(expected.get("harmless"))
    return marks, got


def summarise(results):
    """Counts over a run. `results` are dicts with `case`, `marks`, `got`."""
    positives = [r for r in results if r["case"].positive]
    negatives = [r for r in results if not r["case"].positive]

    def alarming(r):
        return r["case"].expected["expect"] == "alarm" or r["case"].expected.get("alarm_ok")

    def false_alarm(r):
        return r["got"].get("verdict") == "alarm" and not alarming(r)

    def count(column):
        judged = [r["marks"][column] for r in positives if r["marks"][column] is not None]
        return sum(judged), len(judged)

    must = [r for r in positives if r["case"].expected["expect"] == "alarm"]
    summary = {column: count(column) for column in COLUMNS if column != "verdict"}
    summary["alarms"] = (sum(bool(r["marks"]["verdict"]) for r in must), len(must))
    advisories = [r for r in positives if r["case"].expected["expect"] == "advisory"]
    summary["advisories"] = (sum(bool(r["marks"]["verdict"]) for r in advisories), len(advisories))
    summary["silent"] = (
        sum(bool(r["marks"]["verdict"]) and bool(r["marks"]["exit"]) for r in negatives),
        len(negatives),
    )
    summary["fixes"] = (sum(r["got"].get("fix") == "verified" for r in positives), len(positives))
    summary["false_alarms"] = sum(false_alarm(r) for r in results)
    return summary


def share(pair):
    return pair[0] / pair[1] if pair[1] else 1.0


def passes(summary):
    """All alarms, no false alarm, every benign run watched and untouched, lines and causes above their bars."""
    return (
        share(summary["alarms"]) == 1.0
        and summary["false_alarms"] == 0
        and share(summary["silent"]) == 1.0
        and share(summary["line"]) >= 0.95
        and share(summary["cause"]) >= 0.85
    )


def story(report):
    """What two runs of one script must agree on."""
    if not isinstance(report, dict):
        return None
    alarm = first_alarm(report)
    if alarm is None:
        return report.get("outcome"), None, None, None
    birth = (alarm.get("births") or [{}])[0]
    return "alarm", alarm.get("step"), birth.get("line"), (alarm.get("cause") or {}).get("class")


def agree(warm, cold):
    """A forked and a fresh run of the same script must report the same story."""
    return warm is not None and story(warm) == story(cold)
