"""Numbers of bytes and of parameters as people write them."""

from __future__ import annotations

import re

from moeprune.errors import UsageError

_UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([kmgt]i?b|)", re.IGNORECASE)


def parse_bytes(text: str | int, *, option: str) -> int:
    """``"5GB"`` to 5 000 000 000, ``"4GiB"`` to 4 * 2**30; a bare number is bytes.

    Args:
        text: what was asked for.
        option: its name, for the message.

    Raises:
        UsageError: it is no size of at least one byte.
    """
    found = _SIZE.fullmatch(str(text).strip())
    size = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if size < 1:
        raise UsageError(f"{option} {text!r} is not a size such as 5GB, 500MB or 4GiB.")
    return size


def count(number: int) -> str:
    """A number of parameters, in the largest unit that leaves at least 1: ``1.007 B``."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.3f} {name}"
    return f"{number:,}"
