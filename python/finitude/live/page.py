"""The page: the one that web/ builds, or a table that loads itself again where the package was built without node."""

from __future__ import annotations

import html
import os

from .document import in_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUILT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "timeline.html")
REPORT_MARK = '<script type="application/json" id="report">'


def built() -> str | None:
    try:
        with open(BUILT, encoding="ascii") as f:
            return f.read()
    except OSError:
        return None


def filled(template: str, title: str, document: Any) -> str:
    """What is put in is not looked at again."""
    head, mark, rest = template.partition("@@title@@")
    middle, data, end = rest.partition("@@data@@")
    return "".join((head, html.escape(title), middle, in_script(document), end)) if mark and data else template


def with_timeline(report: str, document: Any) -> str:
    """The page of a report with the timeline of its run; the same where it is a page of tables."""
    head, mark, rest = report.partition(REPORT_MARK)
    if not mark:
        return report
    return f'{head}<script type="application/json" id="timeline">{in_script(document)}</script>\n{mark}{rest}'


_STYLE = "body{font:15px sans-serif;margin:2rem}td,th{padding:.2rem .8rem;text-align:left}"


def table(found: dict[str, Any]) -> str:
    """What changes() has of one run, as tables. Loads itself again."""
    rows, happened = [], []
    for process in found["processes"]:
        for one in process["series"]:
            last = next((value for value in reversed(one["last"]) if value is not None), None)
            step = one["last_step"][-1] if one["last_step"] else ""
            cells = process["key"], one["optimizer"], one["quantity"], step, "" if last is None else f"{last:.6g}"
            rows.append(cells)
        happened += [(event["step"], event["kind"], event.get("text", "")) for event in process["events"]]
    title = html.escape(f"finitude: {found['name']}, {found['state']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"{_table(('process', 'optimizer', 'quantity', 'step', 'newest value'), rows)}"
        f"{_table(('step', 'kind', 'what'), happened[-200:])}</body></html>"
    )


def _table(head, rows):
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
