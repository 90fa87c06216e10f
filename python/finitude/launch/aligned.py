"""Which call of one program is which of another, where the second was changed a little."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

MOST_EDITS = 600  # insertions and deletions that are followed; memory grows with their square


def _common(a, b, most):
    """(i, j) of a longest common subsequence (Myers, O(ND)); None: more than `most` edits lead from a to b."""
    begin = 0
    while begin < len(a) and begin < len(b) and a[begin] == b[begin]:
        begin += 1
    end = 0
    while end < len(a) - begin and end < len(b) - begin and a[-1 - end] == b[-1 - end]:
        end += 1
    inner_a, inner_b = a[begin : len(a) - end], b[begin : len(b) - end]
    inner = _shortest(inner_a, inner_b, most)
    if inner is None:
        inner = []
    return (
        [(i, i) for i in range(begin)]
        + [(begin + i, begin + j) for i, j in inner]
        + [(len(a) - end + i, len(b) - end + i) for i in range(end)]
    )


def _shortest(a, b, most):
    n, m = len(a), len(b)
    if not n or not m:
        return []
    reach, trail = {1: 0}, []
    for edits in range(min(n + m, most) + 1):
        trail.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1)
            x = reach[k + 1] if down else reach[k - 1] + 1
            while x < n and x - k < m and x - k >= 0 and a[x] == b[x - k]:
                x += 1
            reach[k] = x
            if x >= n and x - k >= m:
                return _walked_back(a, b, trail, edits)
    return None


def _walked_back(a, b, trail, edits):
    pairs, x, y = [], len(a), len(b)
    for number in range(edits, -1, -1):
        reach, k = trail[number], x - y
        down = k == -number or k != number and reach.get(k - 1, -1) < reach.get(k + 1, -1)
        before = k + 1 if down else k - 1
        from_x = reach.get(before, 0) if number else 0
        from_y = from_x - before if number else 0
        while x > from_x and y > from_y and x > 0 and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if number:
            x, y = from_x, from_y
    return pairs[::-1]


def aligned(
    values_a: Sequence[Hashable], values_b: Sequence[Hashable], forms_a: Sequence[Hashable], forms_b: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """(i, j), rising in both: first calls that came to the same values, then, between those, calls of one form."""
    anchors = [*_common(values_a, values_b, MOST_EDITS), (len(values_a), len(values_b))]
    pairs, at_a, at_b = [], 0, 0
    for i, j in anchors:
        between = _common(forms_a[at_a:i], forms_b[at_b:j], MOST_EDITS)
        pairs += [(at_a + x, at_b + y) for x, y in between]
        if i < len(values_a):
            pairs.append((i, j))
        at_a, at_b = i + 1, j + 1
    return pairs
