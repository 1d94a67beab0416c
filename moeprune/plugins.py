"""The folder is the registry: a plug-in is a module in a plug-in package, its name the file's."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from moeprune.errors import UsageError

# What messages call one plug-in of a folder.
_ONE = {
    "criteria": "criterion",
    "allocators": "allocator",
    "kinds": "kind of task",
    "layouts": "layout",
}


def names(package: ModuleType) -> tuple[str, ...]:
    """Public names of the plug-ins in ``package``, sorted; ``_private`` files, folders are none.

    A file ``prob_sum.py`` is the plug-in ``prob-sum``, as it is spelled on the command line.
    """
    found = (info.name for info in pkgutil.iter_modules(package.__path__) if not info.ispkg)
    return tuple(sorted(name.replace("_", "-") for name in found if not name.startswith("_")))


def load(package: ModuleType, name: str) -> ModuleType:
    """Import the plug-in ``name`` of ``package``.

    Raises:
        UsageError: no such plug-in; the message offers the nearest name.
    """
    folder = package.__name__.rpartition(".")[2]
    known(name, names(package), kind=_ONE.get(folder, folder))
    return importlib.import_module(f"{package.__name__}.{name.replace('-', '_')}")


def known(name: str, choices: Iterable[str], *, kind: str) -> str:
    """Return ``name`` if it is one of ``choices``.

    Raises:
        UsageError: it is not; the message offers the nearest name and lists all.
    """
    ordered = sorted(choices)
    if name in ordered:
        return name
    near = difflib.get_close_matches(name, ordered, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"no {kind} named {name!r}. {hint}There are: {', '.join(ordered)}.")
