"""Sound files of runs, which tests damage and have read."""

import json
import pathlib

DATA = pathlib.Path(__file__).parent / "data"
CAPSULE = DATA / "capsules" / "schema_1_statistics"
ABOUT = json.loads((CAPSULE / "capsule.json").read_text())
REPORTS = [
    json.loads(path.read_text()) for path in sorted((DATA / "reports").glob("*.json")) if path.name != "hostile.json"
]


def harmless(text):
    return all(c.isprintable() or c == "\n" for c in text)


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
