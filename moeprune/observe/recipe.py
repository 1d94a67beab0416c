"""Recipes: a TOML file that names domains, their sources and licences."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema
from moeprune.errors import DomainError, UsageError
from moeprune.kinds import kind_of
from moeprune.observe.sources import source_path
from moeprune.packaged import calibration_folder

SCHEMA = "moeprune.recipe/1"

_INSTEAD = "name a recipe, for example six-domains.toml."
_KEYS = ("schema", "samples", "domains")
_OF_A_DOMAIN = ("source", "licence", "about")


def read_recipe(
    recipe: str | Path, *, domains: object = None, samples: int | None = None
) -> tuple[dict[str, str], int | None]:
    """Domains and documents per domain of a recipe.

    Args:
        recipe: a file; a name without a folder may also be that of a recipe that ships here.
        domains: named beside the recipe: an error, since it is not clear which of the two is meant.
        samples: asked for; it goes before the recipe's.

    Returns:
        Name -> source, relative files taken from the recipe's folder, and the samples.

    Raises:
        UsageError: there are ``domains``.
        DomainError: the file is missing, is no TOML, or says something else than a recipe does.
    """
    if domains is not None:
        raise UsageError("--recipe and --domain both name the domains; give one of them.")
    path = _found(Path(recipe))
    body = _parsed(path)
    check_schema(body, schema=SCHEMA, path=path, error=DomainError)
    _check_keys(body, _KEYS, f"{path}")
    entries = body.get("domains")
    if not isinstance(entries, dict) or not entries:
        raise DomainError(f"{path} names no domain. Write [domains.NAME] with source = '…'.")
    own = body.get("samples")
    if own is not None and (type(own) is not int or own < 1):
        raise DomainError(f"{path}: samples = {own!r} is not a number of documents.")
    found = {name: _source(path, name, entry) for name, entry in entries.items()}
    return found, own if samples is None else samples


def _found(path: Path) -> Path:
    shipped = calibration_folder() / path.name
    return shipped if path.parent == Path() and not path.exists() and shipped.exists() else path


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise DomainError(f"{path} does not exist; {_INSTEAD}") from None
    except UnicodeDecodeError as problem:
        kind = kind_of(path) or "a file"
        raise DomainError(
            f"{path} is {kind}, not UTF-8 text (byte {problem.start}); {_INSTEAD}"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        said, kind = str(problem).partition("\n")[0], kind_of(path) or "a file"
        raise DomainError(f"{path} is {kind}, not TOML ({said}); {_INSTEAD}") from None
    except IsADirectoryError:
        raise DomainError(f"{path} is {kind_of(path) or 'a folder'}; {_INSTEAD}") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise DomainError(f"{path} cannot be read: {reason}.") from None


def _source(path: Path, name: str, entry: object) -> str:
    where = f"{path}, domain {name!r}"
    if not isinstance(entry, dict):
        raise DomainError(f"{where} is a {type(entry).__name__}; write [domains.{name}].")
    _check_keys(entry, _OF_A_DOMAIN, where)
    for key, value in entry.items():
        if not isinstance(value, str):
            raise DomainError(f"{where}: {key} = {value!r} is not a text.")
    source = str(entry.get("source", ""))
    if not source.strip():
        raise DomainError(f"{where} has no source. Write source = '…'.")
    return source if source_path(source) is None else str(path.parent / source)


def _check_keys(body: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in body:
        if key not in known:
            raise DomainError(f"{where} has {key!r}; a recipe knows {', '.join(known)} there.")
