"""Answers as lm-eval logs them, in memory or in a ``samples_*.jsonl``, to answers as ours.

lm-eval logs a question once a filter, with the arguments of its requests, the responses, and a
value a metric. Both forms come out the same here, so that a run of ours can be joined with what
another server was measured by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.core.sample import Sample
from moeprune.errors import RunError
from moeprune.evaluate.harness.logged import (
    arguments_of,
    flat,
    is_number,
    is_pair,
    is_verdict,
    number_of,
    read_answer,
)

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
    # Each answer to a prompt is taken once: two documents may have the same.
    due = {prompt: iter(answers) for prompt, answers in (written or {}).items()}
    first = [next(iter(filters.values())) for filters in documents.values()]
    return tuple(
        _with_lengths(sample, entry, due, lengths or {})
        for sample, entry in zip(found, first, strict=True)
    )


def judged_by(entries: Sequence[Mapping[str, Any]]) -> str:
    """The metric that tells right from wrong, as :func:`metric_name` writes it; ``""``: none."""
    values: dict[tuple[str, str], list[Any]] = {}
    for entry in entries:
        for metric in entry["metrics"]:
            values.setdefault((metric, str(entry["filter"])), []).append(entry.get(metric))
    sure = {key for key, of_key in values.items() if all(is_verdict(value) for value in of_key)}
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
            if is_number(value):
                metrics[name] = float(value)
            elif metric in _COUNTED and is_pair(value) and number_of(value[0]) is not None:
                details |= {"nll": -float(value[0]), _COUNTED[metric]: int(value[1])}
    arguments = arguments_of(judging)
    # Settings of a generation may be written otherwise by another server; texts may not.
    texts = [text for request in arguments for text in request if isinstance(text, str)]
    prediction, answer, more = read_answer(judging, arguments)
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
    entry: Mapping[str, Any],
    written: Mapping[str, Iterator[Written]],
    lengths: Mapping[str, int],
) -> Sample:
    arguments = arguments_of(entry)
    if "text" in sample.details:
        known = [
            answer
            for request, responses in zip(arguments, entry["resps"], strict=False)
            for answer in islice(written.get(str(request[0]), iter(())), len(flat(responses)))
        ]
        if known:
            truncated = any(answer.truncated for answer in known)
            return replace(sample, truncated=truncated, tokens=sum(one.tokens for one in known))
    elif "nll" in sample.details and str(arguments[0][0]) in lengths:
        tokens = lengths[str(arguments[0][0])]
        return replace(sample, details={**sample.details, "tokens": tokens})
    return sample
