"""One entry of what lm-eval logs, in memory or as a file holds it, where numbers are texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def read_answer(
    entry: Mapping[str, Any], arguments: Sequence[Sequence[Any]]
) -> tuple[str | None, str | None, dict[str, Any]]:
    """Prediction, right answer, and what else the responses hold."""
    target = str(entry["target"]) if entry.get("target") is not None else None
    responses = entry["filtered_resps"]
    if any(len(request) > 1 and isinstance(request[1], Mapping) for request in arguments):
        said = flat(responses)
        # What a filter returns where it finds nothing.
        prediction = said[0] if said and said[0] not in ("[invalid]", "") else None
        return prediction, target, {"text": (flat(entry["resps"]) or [""])[0]}
    if len(responses) > 1 and all(is_pair(response) for response in responses):
        # Pointwise mutual information asks for each choice a second time, without the question.
        count = len(responses) // (2 if "acc_mutual_info" in entry["metrics"] else 1)
        scores = [float(response[0]) for response in responses[:count]]
        names = [str(request[-1]).strip() for request in arguments[:count]]
        if len(set(names)) < count:  # the choices stand in the contexts
            names = [str(number) for number in range(count)]
        right = target
        if target is not None and target.isdecimal() and int(target) < count:
            right = names[int(target)]
        more = {"scores": scores} if all(map(math.isfinite, scores)) else {}
        return names[scores.index(max(scores))], right, {"choices": count, **more}
    if len(arguments) == 1 and len(arguments[0]) == 1:  # the text itself
        return None, None, {}
    return None, target, {}


def arguments_of(entry: Mapping[str, Any]) -> list[list[Any]]:
    """Of all requests; a file names them (``gen_args_0``, ``arg_0``), in their order."""
    logged = entry["arguments"]
    requests = logged.values() if isinstance(logged, Mapping) else logged
    return [
        list(request.values()) if isinstance(request, Mapping) else list(request)
        for request in requests
    ]


def flat(responses: Any) -> list[str]:
    """All texts of responses, however they are nested."""
    if isinstance(responses, list | tuple):
        return [text for response in responses for text in flat(response)]
    return [str(responses)]


def is_pair(value: Any) -> bool:
    """Whether it is a pair, the first of which is a number or −inf."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return number_of(value[0]) is not None or str(value[0]) == "-inf"


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no text of one."""
    return not isinstance(value, str) and number_of(value) is not None


def number_of(value: Any) -> float | None:
    """The number, numpy's too, or that of the text which a file holds in its place."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def is_verdict(value: Any) -> bool:
    """Whether it is 0 or 1."""
    return is_number(value) and float(value) in (0.0, 1.0)
