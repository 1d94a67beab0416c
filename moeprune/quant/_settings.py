"""Where a checkpoint keeps its quantisation settings, and the names of modules in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from moeprune.errors import UnsupportedModelError
from moeprune.quant._names import NUMBERED_EXPERT, Change

Path = tuple[str, ...]

# Where quantisers write their settings a second time.
SETTINGS_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")

_IN_CONFIG: tuple[Path, ...] = (
    ("quantization_config",),
    ("compression_config",),
    ("text_config", "quantization_config"),
    ("text_config", "compression_config"),
    ("thinker_config", "text_config", "quantization_config"),
    ("thinker_config", "quantization_config"),
)
_ANY = frozenset({"quantization_config", "compression_config", "quantization"})


def places_in_config(plugin: ModuleType | None) -> tuple[Path, ...]:
    """Key paths in config.json that hold names of modules; ``*`` is any key."""
    places = () if plugin is None else plugin.PLACES
    return tuple((*start, *place) for start in _IN_CONFIG for place in places)


def places_in_file(plugin: ModuleType | None) -> tuple[Path, ...]:
    """The same for a settings file of its own (see ``SETTINGS_FILES``)."""
    return () if plugin is None else tuple(plugin.PLACES)


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quantisation settings in a parsed config.json, or None."""
    for path in _IN_CONFIG:
        level: Any = config
        for key in path:
            level = level.get(key) if isinstance(level, Mapping) else None
        if isinstance(level, Mapping) and level:
            return level
    return None


def settings_paths(config: Mapping[str, Any]) -> list[Path]:
    """Every key path in a parsed config.json that holds quantisation settings."""
    found = []
    for path in _IN_CONFIG:
        level: Any = config
        for key in path:
            level = level.get(key) if isinstance(level, Mapping) else None
        if level is not None:
            found.append(path)
    return found


def check_renumberable(
    config: Mapping[str, Any],
    *,
    places: Collection[Path] = (),
    where: str = "config.json",
    whole: bool = False,
) -> None:
    """Check that nothing but the known places of the settings names single experts.

    Such names would point at other experts once the removed ones are gone.

    Args:
        config: a config, parsed.
        places: key paths whose names are renumbered.
        where: the file, for the message.
        whole: the file holds nothing but settings.

    Raises:
        UnsupportedModelError: something does; the message quotes it.
    """
    for text in _texts(config, places, (), inside=whole):
        if NUMBERED_EXPERT.search(text):
            raise UnsupportedModelError(
                f"the quantisation settings in {where} name a single expert ({text!r}) where "
                "moeprune does not know what it means, so it cannot be renumbered. Prune the "
                "unquantised checkpoint, then quantise."
            )


def settings_differences(
    source: Any, export: Any, *, places: Collection[Path], change: Change, where: str
) -> Iterator[str]:
    """What is wrong with the names in an export's settings, one line each.

    Args:
        source: parsed settings, or the config that holds them.
        export: the same of the export.
        places: key paths that hold names.
        change: what an entry of the source becomes.
        where: the file, for the message.
    """
    for path, mine, theirs in _pairs(source, export, places, ()):
        due = expected(mine, change)
        if due != theirs or (isinstance(due, Mapping) and list(due) != list(theirs)):
            yield (
                f"{where} {'.'.join(path)}: {str(theirs)[:60]}, the kept experts' names would "
                f"make it {str(due)[:60]}"
            )


def expected(value: Any, change: Change) -> Any:
    """A list of names, or an object with names as keys, after the change."""
    if isinstance(value, list):
        made: list[Any] = []
        for item in value:
            if isinstance(item, str):
                made.extend(change(item))
            else:
                made.append(expected(item, change) if isinstance(item, list) else item)
        return made
    if isinstance(value, Mapping):
        return {new: item for key, item in value.items() for new in change(key)}
    return value


def in_place(path: Path, places: Collection[Path]) -> bool:
    """Whether a key path is one of the places."""
    return any(
        len(place) == len(path)
        and all(wanted in ("*", key) for wanted, key in zip(place, path, strict=True))
        for place in places
    )


def _pairs(
    source: Any, export: Any, places: Collection[Path], path: Path
) -> Iterator[tuple[Path, Any, Any]]:
    if path and in_place(path, places):
        yield path, source, export
    elif isinstance(source, Mapping):
        for key, value in source.items():
            other = export.get(key) if isinstance(export, Mapping) else None
            yield from _pairs(value, other, places, (*path, key))
    elif isinstance(source, list):
        for number, value in enumerate(source):
            other = export[number] if isinstance(export, list) and number < len(export) else None
            yield from _pairs(value, other, places, (*path, str(number)))


def _texts(value: Any, places: Collection[Path], path: Path, *, inside: bool) -> Iterator[str]:
    """Every text in the quantisation settings outside the places, keys included."""
    if path and in_place(path, places):
        if isinstance(value, Mapping):  # names are its keys; the values are settings again
            for item in value.values():
                yield from _texts(item, (), (), inside=True)
        elif isinstance(value, str):  # where a list of names is due
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if inside:
                yield key
            deeper = inside or key in _ANY
            yield from _texts(item, places, (*path, key), inside=deeper)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, places, (*path, str(number)), inside=inside)
    elif inside and isinstance(value, str):
        yield value
