"""The file ``domains.json``: where each domain comes from, and its checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

DOMAINS_SCHEMA = "moeprune.domains/1"
CODE_MODULES = (
    "json.decoder", "heapq", "textwrap", "bisect", "argparse", "calendar", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "difflib", "fractions", "functools", "graphlib",
    "gzip", "html.parser", "http.cookies", "inspect", "ipaddress", "mailbox", "numbers", "pickle",
    "plistlib", "pprint", "queue", "random", "selectors", "shlex", "shutil", "statistics",
    "tarfile", "tempfile", "threading", "tokenize", "traceback", "unittest.case", "urllib.parse",
    "uuid", "weakref", "xml.dom.minidom", "cmd", "sched", "asyncio.queues", "email.header",
    "timeit", "socketserver", "colorsys",
)  # fmt: skip
SOURCES = {
    "math": "Exercises with worked solutions, written by calibration/generate.py, which computes "
    "every number.",
    "commonsense": "Everyday situations and reasoning, written for this project.",
    "science": "Explanations of natural science, written for this project.",
    "instruction": "Instructions and responses that follow them, written by "
    "calibration/generate.py, which computes every response.",
    "knowledge": "General knowledge in many forms, written for this project.",
}
ORDER = ("math", "code", "commonsense", "science", "instruction", "knowledge")


def describe(name: str, data: bytes) -> dict[str, object]:
    """Return the entry of a JSON-lines domain in ``domains.json``."""
    texts = [json.loads(line)["text"] for line in data.splitlines() if line]
    return {
        "name": name,
        "kind": "jsonl",
        "file": f"{name}.jsonl",
        "source": SOURCES[name],
        "licence": "Apache-2.0",
        "sha256": hashlib.sha256(data).hexdigest(),
        "documents": len(texts),
        "words": sum(len(t.split()) for t in texts),
    }


def domains(generated: dict[str, bytes], folder: Path) -> bytes:
    """Make ``domains.json`` from the generated files and the hand-written ones in ``folder``."""
    entries: list[dict[str, object]] = []
    for name in ORDER:
        if name == "code":
            entries.append(
                {
                    "name": "code",
                    "kind": "stdlib",
                    "source": "standard library of the running Python interpreter, read in place, "
                    "not copied",
                    "licence": "PSF-2.0",
                    "modules": list(CODE_MODULES),
                }
            )
            continue
        file = f"{name}.jsonl"
        data = generated[file] if file in generated else (folder / file).read_bytes()
        entries.append(describe(name, data))
    body = {"schema": DOMAINS_SCHEMA, "domains": entries}
    return (json.dumps(body, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
