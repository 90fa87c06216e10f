"""Which line took a batch in, where no DataLoader was seen: the loop that binds the name the value was first read by."""

import ast


def name_loop_line(birth):
    """Moves a data birth without an op of its own from its first reader to the `for` line that bound what was read."""
    if birth.get("phase") != "data" or birth.get("op") or not birth.get("file"):
        return
    try:
        with open(birth["file"], encoding="utf-8") as f:
            text = f.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    line = birth["line"]
    used, loops = set(), []
    for node in ast.walk(tree):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if isinstance(node, ast.Name) and first <= line <= last:
            used.add(node.id)
        if isinstance(node, (ast.For, ast.AsyncFor)) and first < line <= last:
            loops.append(node)
    for loop in sorted(loops, key=lambda n: -n.lineno):
        bound = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        if bound & used:
            birth["line"] = loop.lineno
            birth["source"] = text.splitlines()[loop.lineno - 1].strip()[:400]
            return
