"""The lines of one file of lm-eval's samples, one a question and filter, made sound and alike.

Older versions name neither filter nor metrics, and write the arguments as lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeprune.artefact import parse_json
from moeprune.errors import RunError

# Keys of a line that are no metrics.
_KEYS = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash"),
}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines, without the questions' own columns, which can be large and are not needed.

    Raises:
        RunError: a line is not one of lm-eval's.
    """
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _sound(parse_json(line), f"{path} line {number}")
    except json.JSONDecodeError as problem:
        raise RunError(
            f"{path} line {number} is not JSON ({problem.msg}); the file is cut short."
        ) from None
    except UnicodeDecodeError:
        raise RunError(f"{path} is not UTF-8 text, so not one that lm-eval wrote.") from None
    except ValueError as problem:
        raise RunError(f"{path} line {number} is not JSON: {problem}.") from None
    except OSError as problem:
        raise RunError(f"{path} cannot be read: {problem.strerror or problem}.") from None


def _sound(body: Any, where: str) -> dict[str, Any]:
    if not isinstance(body, dict) or type(body.get("doc_id")) is not int:
        raise RunError(f"{where} has no doc_id, so it is none of lm-eval's answers.")
    metrics = body.get("metrics", [key for key in body if key not in _KEYS])
    filter_ = body.get("filter", "none")
    if not _are(metrics, str) or not isinstance(filter_, str):
        raise RunError(f"{where}: metrics or filter are not those of lm-eval.")
    for name in ("resps", "filtered_resps"):
        if not isinstance(body.get(name), list):
            raise RunError(f"{where}: {name} is {body.get(name)!r}, not a list as lm-eval's.")
    return {
        "doc_id": body["doc_id"],
        "target": body.get("target"),
        "arguments": _arguments(body.get("arguments"), where),
        "resps": body["resps"],
        "filtered_resps": body["filtered_resps"],
        "filter": filter_,
        "metrics": metrics,
        **{name: _value(body.get(name)) for name in metrics if name not in _KEYS},
    }


def _arguments(logged: Any, where: str) -> list[list[Any]]:
    """Of all requests: ``{"gen_args_0": {"arg_0": text, …}, …}``, or lists of lists."""
    requests = list(logged.values()) if isinstance(logged, dict) else logged
    if isinstance(requests, list) and requests:
        found = [list(one.values()) if isinstance(one, dict) else one for one in requests]
        if all(isinstance(one, list) and one for one in found):
            return found
    raise RunError(f"{where}: arguments are {str(logged)[:40]!r}, not those of lm-eval.")


def _value(value: Any) -> Any:
    """A number, or a pair of them (a log-likelihood and what it is counted by); None: of no use."""
    if isinstance(value, list):
        pair = [_number(item) for item in value]
        return pair if len(pair) == 2 and None not in pair else None
    return _number(value)


def _number(value: Any) -> float | int | None:
    if not isinstance(value, bool | int | float):
        return None
    return value if -(1 << 62) < value < 1 << 62 and math.isfinite(value) else None


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)
