"""What a comparison of a changed program with the unchanged one means: is the change a fix, and if not, why not?"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _several(count, what):
    return f"{count} {what}{'s' * (count != 1)}"


def objection(values: dict[str, Any] | None) -> str:
    """Why a change after which the step is finite is no fix all the same, or ""."""
    if not values or "kept" not in values:
        return "its values could not be compared" + (
            f" ({values['trouble']})" if values and values.get("trouble") else ""
        )
    if values["hidden"]:
        return "the operation of the birth still makes values that are not finite: the change hides them"
    if values["changed"]:
        first = values["first"]
        size = "by rounding only" if values["rounding"] else f"by up to {values['largest']:.3g} of the largest"
        return (
            f"{_several(values['changed'], 'value')} that the birth did not touch changed ({size}), first in "
            f"{first['op']} {first['shape']}"
        )
    if values["missing"]:
        return (
            "operations that the birth did not touch are not in the changed program, so their values could not be "
            f"compared: {', '.join(values['missing'][:8])}"
        )
    if values["not_compared"]:
        trouble = f" ({values['trouble']})" if values["trouble"] else ""
        return f"{_several(values['not_compared'], 'tensor')} of the step could not be compared{trouble}"
    if not values["kept"]:
        return "no value of the step was there to compare"
    return ""


def praise(values: dict[str, Any] | None) -> str:
    """What is added to "fixed" where the values were compared and kept."""
    return f"; {_several(values['kept'], 'value')} that the birth did not touch as before" if values else ""
