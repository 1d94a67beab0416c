"""A protocol out of what a task file and the command line state."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from moeprune.core.tasks import Protocol
from moeprune.errors import UsageError
from moeprune.evaluate import kinds
from moeprune.evaluate.extract import check_rule
from moeprune.plugins import known, names

# What a task file may hold beside the protocol.
OWN = ("name", "questions", "shots_from", "ignore")

_WHAT = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "texts": "a list of texts",
}
_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("shots", "max_new_tokens", "length", "limit", "seed"), "int"),
    **dict.fromkeys(("temperature", "expected"), "float"),
    **dict.fromkeys(("chat_template", "thinking", "ignore_case"), "bool"),
    "stop": "texts",
}
FIELDS = ("question", "options", "domain", "letter", "choice")
_FIELD = re.compile(r"\{(\w+)\}")


def check_keys(body: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    """Check that there is no key but these.

    Raises:
        UsageError: there is; the message offers the nearest.
    """
    ordered = sorted(keys)
    for key in body:
        if key not in ordered:
            near = difflib.get_close_matches(key, ordered, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{where} has {key!r}.{hint} Known are: {', '.join(ordered)}.")


def text_at(body: Mapping[str, Any], key: str, where: str) -> str | None:
    """The text under a key, None where there is no such key.

    Raises:
        UsageError: it is no text, or blank.
    """
    value = body.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise UsageError(f"{where}: {key} = {value!r} is not a text.")
    return value


def protocol_of(stated: Mapping[str, Any], where: str) -> Protocol:
    """The protocol that states this.

    Args:
        stated: keys of :class:`Protocol` with the values of a TOML file or a command line.
        where: for messages.

    Raises:
        UsageError: a value is not of its type or out of range, or a template or a rule of
            extraction cannot be used.
    """
    try:
        protocol = Protocol(**{key: _value(key, value) for key, value in stated.items()})
        known(protocol.kind, names(kinds), kind="kind of task")
        check_rule(protocol.extract)
        for name in ("description", "question", "option"):
            _check_template(name, getattr(protocol, name))
    except UsageError as problem:
        raise UsageError(f"{where}: {problem}") from None
    return protocol


def _value(key: str, value: Any) -> Any:
    kind = _TYPES.get(key, "str")
    if kind == "texts":
        value = (value,) if isinstance(value, str) else value
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value).__name__ == kind:
        return value
    raise UsageError(f"{key} = {value!r} is not {_WHAT[kind]}.")


def _check_template(name: str, template: str) -> None:
    for found in _FIELD.findall(template):
        near = difflib.get_close_matches(found, FIELDS, n=1, cutoff=0.75)
        if near and found not in FIELDS:
            raise UsageError(f"{name} = {template!r} has {{{found}}}; write {{{near[0]}}}.")
    if name == "question" and template and "{question}" not in template:
        raise UsageError(f"question = {template!r} lacks {{question}}, so nothing would be asked.")
