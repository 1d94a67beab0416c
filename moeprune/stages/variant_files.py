"""A TOML file of ``[[variant]]`` tables: read, with one line for whatever is wrong with it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema
from moeprune.core.policy_words import ALL
from moeprune.errors import UsageError
from moeprune.kinds import kind_of
from moeprune.plugins import known

SCHEMA = "moeprune.variants/1"
KEYS = ("name", "plan", "k1", "k2", "gain", "ablation", "seed")
HOW = "Write a [[variant]] table with name = '…' for each, and plan = 'plan.json' where it has one"
_LONGEST = 200  # bytes: more than a folder's name may have, with what is put to it
_TEXTS = ("name", "plan", "ablation")


def variant_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> what its table says, paths of plans made whole.

    Raises:
        UsageError: it is no such file.
    """
    body = _parsed(path)
    if "schema" in body:
        check_schema(body, schema=SCHEMA, path=path, error=UsageError)
    for key in body:
        known(key, ("schema", "variant"), kind=f"key of {path}")
    entries = body.get("variant")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        kind = kind_of(path) or "a file"
        raise UsageError(f"{path} is {kind} that lists no variants. {HOW}.")
    found: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, variant {number}"
        table = checked(entry, where=where)
        if "name" not in table:
            raise UsageError(f"{where} has no name. {HOW}.")
        name = table.pop("name")
        if name in found:
            raise UsageError(f"{path} names two variants {name!r}. Give each its own.")
        if "plan" in table:  # plans lie beside the file, where their path is relative
            table["plan"] = path.parent / table["plan"]
        found[name] = table
    return found


def checked(entry: dict[str, Any], *, where: str) -> dict[str, Any]:
    """A table whose keys are known and whose values are of their types.

    Raises:
        UsageError: they are not.
    """
    for key, value in entry.items():
        known(key, KEYS, kind=f"key of {where}")
        if key in _TEXTS:
            good, wanted = isinstance(value, str) and value != "", "a text"
        elif key == "gain":
            values = value if isinstance(value, list | tuple) else [value]
            good = bool(values) and all(type(one) in (int, float) for one in values)
            wanted = "a number, or one a layer"
        elif key == "k2":
            good, wanted = type(value) is int or value == ALL, f"a whole number, or {ALL!r}"
        else:
            good, wanted = type(value) is int, "a whole number"
        if not good:
            raise UsageError(f"{where}: {key} = {value!r} is not {wanted}.")
    return dict(entry)


def check_names(names: Sequence[str]) -> None:
    """Each is the name of a folder, on every file system, and tells it from the others.

    Raises:
        UsageError: one is not, or there is none.
    """
    if not names:
        raise UsageError(f"there is no variant to evaluate. {HOW}.")
    seen: dict[str, str] = {}
    for name in names:
        bad = name != name.strip() or name in (".", "..") or set(name) & set('/\\:*?"<>|')
        if bad or not name.isprintable() or len(name.encode("utf-8", "replace")) > _LONGEST:
            raise UsageError(
                f"variant {name[:80]!r} cannot be the name of a folder. Call it otherwise, "
                "without / and the like."
            )
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"variants {other!r} and {name!r} differ in case alone, and would be one folder "
                "on some systems. Call one of them otherwise."
            )


def _parsed(path: Path) -> dict[str, Any]:
    way_out = f"It should name variants. {HOW}."
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. {way_out}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is {kind_of(path) or 'not UTF-8 text'}. {way_out}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        said, kind = str(problem).partition("\n")[0], kind_of(path) or "a file"
        raise UsageError(f"{path} is {kind}, not TOML ({said}). {way_out}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is {kind_of(path) or 'a folder'}. {way_out}") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(f"{path} cannot be read: {reason}.") from None
