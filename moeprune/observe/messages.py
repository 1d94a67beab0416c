"""The messages of a chat as a row holds them, made fit for templates, tokenizers and JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from moeprune.errors import DomainError

Messages = tuple[Mapping[str, Any], ...]

_SURROGATE = re.compile("[\ud800-\udfff]")
_AS_TEXT = (date, time, timedelta, Decimal)  # a datetime is a date


def messages_of(value: Any, where: str, *, table: bool = False) -> Messages:
    """The messages of a chat, of texts, numbers, lists and objects alone.

    NaN, which JSON does not have and pandas writes for what is missing, becomes null. In a table,
    where each message has the keys of all, those that are null are left out at every depth:
    templates look for keys.

    Args:
        value: what stands in the row.
        where: the row and its key.
        table: the row is of a table.

    Raises:
        DomainError: it is no chat, or holds something else.
    """
    if not isinstance(value, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in value
    ):
        raise DomainError(f"{where} must be a list of objects with a 'role'.")
    try:
        return tuple(_fit(message, where, table=table) for message in value)
    except RecursionError:
        raise DomainError(f"{where} is nested too deep. Leave the row out.") from None


def _fit(value: Any, where: str, *, table: bool) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_fit(item, where, table=table) for item in value]
    if isinstance(value, dict):
        found = {encodable(str(key)): _fit(item, where, table=table) for key, item in value.items()}
        return {key: item for key, item in found.items() if item is not None or not table}
    if isinstance(value, _AS_TEXT):
        return str(value)
    raise DomainError(
        f"{where} holds a {type(value).__name__}; only texts and numbers serve. Leave it out."
    )


def encodable(text: str) -> str:
    """``text`` with every lone surrogate replaced: JSON can spell one, no tokenizer encodes it."""
    if not _SURROGATE.search(text):
        return text  # not a copy of it
    return text.encode("utf-8", "replace").decode("utf-8")
