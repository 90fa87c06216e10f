"""Where the user's code stands: value stacks, source lines, running modules; and what a look costs."""

import os
import sys
import threading

import pytest

from frames_support import built, native  # noqa: F401

pytestmark = pytest.mark.fast


class Big:
    pass


def test_depth_by_analysis_equals_the_interpreters(built):
    native, names, _ = built
    seen = []

    class Inner(names["Module"]):
        def forward(self, x):
            for _ in zip([1], [2]):
                with names["Quiet"](), names["Quiet"]():
                    seen.extend(native.both_depths())
            return x

    [list(map(Inner(), [1])) for _ in range(2)]
    known = [(function, said, computed) for function, said, computed in seen if said >= 0]
    assert len(seen) > 10 and all(said == computed for _, said, computed in known), known
    assert all(computed >= 0 for _, _, computed in seen)
    assert known or sys.version_info < (3, 11)


def test_user_stack_and_line(built):
    native, names, _ = built
    here = names["no_grad"]

    @here
    def inside():
        return native.stack(8), native.line()

    line = inside.__closure__[0].cell_contents.__code__.co_firstlineno + 2
    frames, (file, number, function) = inside()
    assert frames[0] == (os.path.abspath(__file__), line, "inside") == (file, number, function)
    assert frames[1][0] == os.path.abspath(__file__) and frames[1][2] == "test_user_stack_and_line"
    assert all("stepper.py" not in frame[0] for frame in frames)
    assert len(native.stack(1)) == 1


def test_module_selves(built):
    native, names, _ = built
    seen = []

    class Leaf(names["Module"]):
        def forward(self):
            seen.append(native.modules())

    class Root(names["Module"]):
        def __init__(self):
            self.leaf = Leaf()

        def forward(self):
            return self.leaf()

    root = Root()
    root()
    assert seen == [[root.leaf, root]]


def test_take_is_quick(native, capsys):
    names = {f"name_{i}": (i, str, os, Big, 1.5 * i)[i % 5] for i in range(100)}
    out = {}

    def innermost(a, b, c):
        d, e, f = Big(), [1, 2], {"lr": 0.1}  # noqa: F841
        for _ in range(1):
            out["take"] = min(native.time_take(snapshot, 2000) for _ in range(20))
            out["stack"], out["ids"] = map(min, zip(*(native.time_stack(2000) for _ in range(20))))

    def middle(x):
        for i, (y, _) in enumerate(zip([1], [2])):
            innermost(i, y, x)

    def outer():
        middle(Big())

    snapshot = native.make()
    names["outer"] = outer
    thread = threading.Thread(target=exec, args=("outer()", names))
    thread.start()
    thread.join()
    with capsys.disabled():
        print(f"\n  take {out['take']:.0f} ns, user_stack {out['stack']:.0f} ns, ids {out['ids']:.0f} ns")
    assert out["take"] < 30_000 and out["stack"] < 10_000
