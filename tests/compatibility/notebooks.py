"""A row that is run by a real Jupyter kernel: its report is the one that the run leaves in its directory."""

import json

import helpers


def run(folder, program, policy):
    """The program as the one cell of a notebook; policy: None runs it without us."""
    import nbformat
    from nbclient import NotebookClient

    cells = ["%load_ext finitude"] * (policy is not None) + [program.read_text(encoding="utf-8")]
    cells += ["%unload_ext finitude"] * (policy is not None)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    client = NotebookClient(
        book, timeout=60, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(
        env=helpers.environment({"IPYTHONDIR": str(folder / ".ipython"), "FINITUDE_ON_ALARM": policy or "skip"})
    )
    outputs = [o for cell in book.cells for o in cell.outputs]
    text = {
        name: "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)
        for name in ("stdout", "stderr")
    }
    failed = any(o.output_type == "error" for o in outputs)
    found = next(iter(folder.glob("finitude-runs/*/report.json")), None)
    report = json.loads(found.read_text(encoding="utf-8")) if found else None
    return helpers.Result(int(failed), text["stdout"], text["stderr"], report, folder)
