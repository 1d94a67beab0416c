"""Domains as they are named: ``NAME=SOURCE``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeprune.errors import DomainError, UsageError
from moeprune.observe.sources import BUILTIN, builtin_names


def parse_domain(text: str, *, option: str = "--domain") -> tuple[str, str]:
    """Split ``NAME=SOURCE``.

    Args:
        text: to split.
        option: under which the user gave it.

    Raises:
        UsageError: no ``=``, or one side is empty.
    """
    name, equals, source = text.partition("=")
    if not equals or not name.strip() or not source.strip():
        raise UsageError(
            f"{option} {text!r} is not NAME=SOURCE. Write for example math=builtin:math."
        )
    return name.strip(), source.strip()


def named_domains(
    domains: Mapping[str, str] | Sequence[str] | None, *, option: str = "--domain"
) -> dict[str, str]:
    """Name -> source, checked; None gives the built-in domains.

    Args:
        domains: as the user names them.
        option: under which.

    Raises:
        DomainError: a name occurs twice, is empty or cannot name a tensor.
        UsageError: an entry is not ``NAME=SOURCE``, or there is none.
    """
    if domains is None:
        pairs = [(name, BUILTIN + name) for name in builtin_names()]
    elif isinstance(domains, Mapping):
        pairs = list(domains.items())
    else:
        texts = [domains] if isinstance(domains, str) else domains
        pairs = [parse_domain(text, option=option) for text in texts]
    if not pairs:
        raise UsageError("no domain to calibrate on. Name at least one with --domain NAME=SOURCE.")
    found: dict[str, str] = {}
    for name, source in pairs:
        if not name.strip() or "/" in name or not name.isprintable():
            raise DomainError(
                f"a domain cannot be called {name!r}: stats are stored under NAME/FIELD. "
                "Use a printable name without '/'."
            )
        if name in found:
            raise DomainError(
                f"domain {name!r} is given twice ({found[name]} and {source}). Rename one."
            )
        found[name] = str(source)
    return found
