"""Two small domains of calibration text, one with a name that is not ASCII."""

from __future__ import annotations

import json
from pathlib import Path


def two_domains(folder: Path) -> dict[str, str]:
    """Write 11 and 7 documents of several lengths; domain -> file."""
    found = {}
    for name, documents in {"数学": 11, "prose": 7}.items():
        rows = [{"text": f"{name} {row} " * (1 + row % 5)} for row in range(documents)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        found[name] = str(path)
    return found
