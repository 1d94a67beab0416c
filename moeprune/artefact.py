"""One way to write an artefact: canonical bytes, complete or absent, versioned, hashed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moeprune.errors import MoePruneError, OutputError
from moeprune.kinds import kind_of, kind_of_json, wanted

Json = Any  # what json.loads returns

_HASH_CHUNK = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")


def canonical_json(body: Json) -> str:
    """Serialise ``body`` so that equal values give equal text (sorted keys, no spaces, UTF-8).

    Raises:
        ValueError: a NaN or infinity, which JSON cannot say.
    """
    return encodable(
        json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    )


def encodable(text: str) -> str:
    """JSON text with every lone surrogate as a ``u`` escape: the same value, and fit for UTF-8.

    A file name that is not UTF-8 reaches Python as such a surrogate.
    """
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def parse_json(text: str) -> Json:
    """What ``text`` says, if it says one thing: no key twice in an object, no bottomless nesting.

    Raises:
        ValueError: it is not such JSON; ``json.JSONDecodeError`` where a line can be named.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_key_twice(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table = dict(pairs)
    if len(table) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return table


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in chunks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; it takes the asked name only if the block succeeds.

    The file is fsynced before the rename, so that after a crash ``path`` is either the old file or
    the whole new one. A link is followed: the file it points to is replaced, the link stays.

    Raises:
        OutputError: the folder does not exist, ``path`` is no regular file (a folder, a device, a
            pipe), or the disk is full or not writable.
    """
    temporary: Path | None = None
    try:
        target, temporary = _reserved(path)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; an artefact is shared
        temporary.replace(target)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Fail now, not after hours of work: nothing is left behind, and nothing is replaced.

    Raises:
        OutputError: as :func:`atomic_path` would, but for a disk that fills up meanwhile.
    """
    try:
        _reserved(path)[1].unlink()
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error


def _reserved(path: Path) -> tuple[Path, Path]:
    """What a write to ``path`` replaces, and a new empty file beside it."""
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: folder {path.parent} does not exist. Create it.")
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder. Name a file.")
    if path.exists() and not path.is_file():  # a rename would put a file in a device's place
        raise OutputError(f"cannot write {path}: it is a device or a pipe. Name a file.")
    target = Path(os.path.realpath(path))
    prefix = hidden_prefix(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=".partial")
    os.close(handle)
    return target, Path(name)


def hidden_prefix(path: Path) -> str:
    """How the names of hidden files begin that are there while ``path`` is written.

    A hash, since with a long name they would become too long.
    """
    return f".moeprune-{sha256_bytes(os.fsencode(path.name))[:12]}-"


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, complete or not at all.

    Raises:
        OutputError: see :func:`atomic_path`.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def read_json(path: Path, *, error: type[MoePruneError], what: str) -> Json:
    """Parse a JSON file.

    Args:
        path: the file.
        error: the class raised when it cannot be read.
        what: what the file should be, for the message ("a plan, which 'moeprune plan' writes").
    """
    try:
        return parse_json(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise error(f"{path} does not exist; it should be {what}.") from None
    except IsADirectoryError:
        raise error(f"{path} is {kind_of(path) or 'a folder'}; it should be {what}.") from None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    except UnicodeDecodeError:
        kind = kind_of(path) or "not UTF-8 text"
        raise error(f"{path} is {kind}; it should be {what}.") from None
    except json.JSONDecodeError as problem:
        kind = kind_of(path) or "a file"
        raise error(
            f"{path} is {kind}, not one JSON object (line {problem.lineno}: {problem.msg}); "
            f"it should be {what}."
        ) from None
    except ValueError as problem:  # a key twice, a number of 5,000 digits, a path with a NUL
        reason = str(problem).partition(";")[0]
        raise error(f"{path} is not {what} that can be read: {reason}.") from None


def check_schema(
    body: Mapping[str, Json], *, schema: str, path: object, error: type[MoePruneError]
) -> None:
    """Check that ``body["schema"]`` is of the same major version as ``schema`` ("name/1").

    Raises:
        error: another kind of file, or a newer major version.
    """
    found = body.get("schema") if isinstance(body, Mapping) else None
    name, _, major = schema.partition("/")
    if not isinstance(found, str) or found.partition("/")[0] != name:
        kind = kind_of_json(body) or (kind_of(path) if isinstance(path, Path) else None)
        kind = kind or "something else"
        raise error(f"{path} is {kind} (schema {found!r}); it should be {wanted(schema)}.")
    if found.partition("/")[2].split(".")[0] != major.split(".")[0]:
        raise error(
            f"{path} has schema {found}, this moeprune reads {schema}. Use the moeprune that "
            "wrote it, or make the file again."
        )


def readable_json(body: Mapping[str, Any]) -> str:
    """Sorted keys, one line for each entry of an entry: fit for a person to read and to diff.

    What lies deeper keeps its order: whoever builds it sorts it.
    """
    blocks = []
    for key in sorted(body):
        value = body[key]
        if isinstance(value, Mapping) and value:
            lines = [f"    {_line(name)}: {_line(value[name])}" for name in sorted(value)]
            text = "{\n" + ",\n".join(lines) + "\n  }"
        elif isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"    {_line(item)}" for item in value) + "\n  ]"
        else:
            text = _line(value)
        blocks.append(f"  {_line(key)}: {text}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _line(value: Any) -> str:
    return encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
