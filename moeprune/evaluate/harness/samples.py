"""Answers as lm-eval logs them, in memory or in a ``samples_*.jsonl``, to answers as ours.

lm-eval logs a question once a filter, with the arguments of its requests, the responses, and a
value a metric. Both forms come out the same here, so that a run of ours can be joined with what
another server was measured by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.core.run import Sample
from moeprune.errors import RunError

PREFIX = "lm_eval:"
_RIGHT_OR_WRONG = ("acc", "exact_match", "prompt_level_strict_acc", "pass@1", "acc_norm")
_UNFILTERED = "none"
_COUNTED = {"word_perplexity": "words", "byte_perplexity": "bytes", "bits_per_byte": "bytes"}
_NEEDED = ("doc_id", "arguments", "resps", "filtered_resps", "filter", "metrics")


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of a written answer beyond its text."""

    tokens: int
    truncated: bool


def samples_of(
    logged: Iterable[Mapping[str, Any]],
    *,
    part: str,
    whole: str | None = None,
    written: Mapping[str, Sequence[Written]] | None = None,
    lengths: Mapping[str, int] | None = None,
    where: str = "",
) -> tuple[Sample, ...]:
    """The answers of one task of lm-eval.

    Args:
        logged: its entries, of all filters.
        part: its name.
        whole: the group or tag that was asked for, of which it is a domain.
        written: text of a prompt -> what is known of the answers to it.
        lengths: a text whose likelihood was asked for -> its tokens.
        where: names the file in messages.

    Returns:
        An answer a document, in the order of the documents. ``correct`` is told by ``acc`` or
        ``exact_match`` (of the first filter) or else the first metric that is true or false;
        ``details["judged_by"]`` names it.

    Raises:
        RunError: an entry lacks what lm-eval logs.
    """
    entries = [_checked(entry, where or part) for entry in logged]
    judge = judged_by(entries)
    documents: dict[str, dict[str, Mapping[str, Any]]] = {}
    for entry in entries:
        id_ = str(entry["doc_id"])
        filters = documents.setdefault(id_, {})
        name = str(entry["filter"])
        if name in filters:
            raise RunError(f"{where or part}: document {id_} is answered twice.")
        filters[name] = entry
    found = [
        _sample(filters, id_, part=part, whole=whole, judge=judge)
        for id_, filters in documents.items()
    ]
    prompts = [_arguments(next(iter(filters.values()))) for filters in documents.values()]
    return tuple(
        _with_lengths(sample, str(requests[0][0]), written or {}, lengths or {})
        for sample, requests in zip(found, prompts, strict=True)
    )


def judged_by(entries: Sequence[Mapping[str, Any]]) -> str:
    """The metric that tells right from wrong, as :func:`metric_name` writes it; ``""``: none."""
    values: dict[tuple[str, str], list[Any]] = {}
    for entry in entries:
        for metric in entry["metrics"]:
            values.setdefault((metric, str(entry["filter"])), []).append(entry.get(metric))
    sure = {key for key, of_key in values.items() if all(_yes_or_no(value) for value in of_key)}
    for wanted in _RIGHT_OR_WRONG:
        for metric, filter_ in values:
            if metric == wanted and (metric, filter_) in sure:
                return metric_name(metric, filter_)
    for key, of_key in values.items():
        if key in sure and all(type(value) in (bool, int) for value in of_key):
            return metric_name(*key)
    return ""


def metric_name(metric: str, filter_: str) -> str:
    """``acc``, or ``exact_match,strict-match`` where a filter with a name read the answer."""
    return metric if filter_ == _UNFILTERED else f"{metric},{filter_}"


def _checked(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for name in _NEEDED:
        if name not in entry:
            raise RunError(f"{where}: an entry has no {name!r}; lm-eval logs it (--log_samples).")
    return entry


def _sample(
    filters: Mapping[str, Mapping[str, Any]],
    id_: str,
    *,
    part: str,
    whole: str | None,
    judge: str,
) -> Sample:
    metrics: dict[str, float] = {}
    details: dict[str, Any] = {"judged_by": judge} if judge else {}
    judging = next(iter(filters.values()))
    correct = None
    for filter_, entry in filters.items():
        for metric in entry["metrics"]:
            name = metric_name(metric, filter_)
            value: Any = entry.get(metric)
            if name == judge:
                judging, correct = entry, bool(value)
            if _is_number(value):
                metrics[name] = float(value)
            elif metric in _COUNTED and _is_pair(value) and _number(value[0]) is not None:
                details |= {"nll": -float(value[0]), _COUNTED[metric]: int(value[1])}
    arguments = _arguments(judging)
    # Settings of a generation may be written otherwise by another server; texts may not.
    texts = [text for request in arguments for text in request if isinstance(text, str)]
    prediction, answer, more = _read(judging, arguments)
    return Sample(
        task=f"{PREFIX}{whole or part}",
        domain=part,
        id=f"{part}/{id_}" if whole else id_,
        input=sha256_bytes(canonical_json(texts).encode("utf-8", "surrogatepass")),
        metrics=metrics,
        correct=correct,
        prediction=prediction,
        answer=answer,
        details={**details, **more},
    )


def _with_lengths(
    sample: Sample,
    prompt: str,
    written: Mapping[str, Sequence[Written]],
    lengths: Mapping[str, int],
) -> Sample:
    if "text" in sample.details and written.get(prompt):
        known = written[prompt]
        truncated = any(one.truncated for one in known)
        return replace(sample, truncated=truncated, tokens=sum(one.tokens for one in known))
    if "nll" in sample.details and prompt in lengths:
        return replace(sample, details={**sample.details, "tokens": lengths[prompt]})
    return sample


def _read(
    entry: Mapping[str, Any], arguments: Sequence[Sequence[Any]]
) -> tuple[str | None, str | None, dict[str, Any]]:
    """Prediction, right answer, and what else the responses hold."""
    target = str(entry["target"]) if entry.get("target") is not None else None
    responses = entry["filtered_resps"]
    if any(len(request) > 1 and isinstance(request[1], Mapping) for request in arguments):
        said = _flat(responses)
        # What a filter returns where it finds nothing.
        prediction = said[0] if said and said[0] not in ("[invalid]", "") else None
        return prediction, target, {"text": (_flat(entry["resps"]) or [""])[0]}
    if len(responses) > 1 and all(_is_pair(response) for response in responses):
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


def _arguments(entry: Mapping[str, Any]) -> list[list[Any]]:
    """Of all requests; a file names them (``gen_args_0``, ``arg_0``), in their order."""
    logged = entry["arguments"]
    requests = logged.values() if isinstance(logged, Mapping) else logged
    return [
        list(request.values()) if isinstance(request, Mapping) else list(request)
        for request in requests
    ]


def _flat(responses: Any) -> list[str]:
    if isinstance(responses, list | tuple):
        return [text for response in responses for text in _flat(response)]
    return [str(responses)]


def _is_pair(value: Any) -> bool:
    """Of a number, or of −inf."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return _number(value[0]) is not None or str(value[0]) == "-inf"


def _is_number(value: Any) -> bool:
    return not isinstance(value, str) and _number(value) is not None


def _number(value: Any) -> float | None:
    """Of a number, numpy's too, or of the text that a file holds in its place."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _yes_or_no(value: Any) -> bool:
    return _is_number(value) and float(value) in (0.0, 1.0)
