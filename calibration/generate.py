"""Write the calibration text that is computed instead of written by hand.

``python calibration/generate.py`` rewrites ``math.jsonl``, ``instruction.jsonl`` and
``domains.json`` beside this file; ``python calibration/generate.py --check`` exits 1 when a file
on disk differs from what would be written.  The output depends on nothing but this program (with
the folder ``generators/`` beside it) and, for the checksums in ``domains.json``, the hand-written
``commonsense.jsonl``, ``science.jsonl`` and ``knowledge.jsonl``.

A *kind* is a function that makes one exercise (a :class:`generators.piece.Piece`).  Its ``turn``
argument counts how often the kind was used before, so that the wording changes when it comes back
in a later document.  Every number, list and table in an answer is computed, never typed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from generators.catalogue import domains
from generators.corpus import compose, jsonl
from generators.instruction_kinds import INSTRUCTION_KINDS
from generators.layouts import INSTRUCTION_LAYOUTS, MATH_LAYOUTS
from generators.math_kinds import MATH_KINDS
from generators.piece import join_and

HERE = Path(__file__).resolve().parent
MATH_FILE = "math.jsonl"
INSTRUCTION_FILE = "instruction.jsonl"
DOMAINS_FILE = "domains.json"


def outputs(folder: Path = HERE) -> dict[str, bytes]:
    """Return the content of every file that this program writes, by file name."""
    files = {
        MATH_FILE: jsonl(compose("math", MATH_KINDS, MATH_LAYOUTS)),
        INSTRUCTION_FILE: jsonl(compose("instruction", INSTRUCTION_KINDS, INSTRUCTION_LAYOUTS)),
    }
    files[DOMAINS_FILE] = domains(files, folder)
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them with what is on disk."""
    parser = argparse.ArgumentParser(description="Write the computed calibration text.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    options = parser.parse_args(argv)
    try:
        files = outputs()
    except FileNotFoundError as missing:
        parser.exit(1, f"missing hand-written file: {Path(missing.filename).name}\n")
    stale = []
    for name, data in files.items():
        path = HERE / name
        if options.check:
            if not path.is_file() or path.read_bytes() != data:
                stale.append(name)
        else:
            path.write_bytes(data)
            print(f"wrote {name}: {len(data)} bytes")
    if stale:
        print(f"out of date: {join_and(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
