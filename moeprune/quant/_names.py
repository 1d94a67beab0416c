"""Names of experts in quantisation settings: which experts an entry means, and what it becomes.

An entry is the name of a module or a pattern over such names. Once experts have left and the rest
has new numbers, every entry must mean the same experts as before, those that left not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from moeprune.errors import UnsupportedModelError

# Also in regular expressions, where the dot is written "\\." or "[.]".
NUMBERED_EXPERT = re.compile(r"\bexperts(?:\\?\.|\[\.\])\(?\d")

_LITERAL = re.compile(r"[\w.-]*")
_EXPERT = re.compile(r"(?P<container>(?:.*\.)?experts)\.(?P<expert>\d+)(?P<rest>(?:\..*)?)")
_NUMBER_IN_PATTERN = re.compile(
    r"(?<=experts\\\.)\d+(?=\\\.)|(?<=experts\[\.\])\d+(?=\[\.\])|(?<=experts\.)\d+(?=\.)"
)
_PREFIX = re.compile(r"re:|[+-]:|")
_LEAVES = re.compile(
    r"\.(?:weight|qweight|qzeros|scales|g_idx|bias|scale|input_scale|SCB)(?:[._].*)?$"
)

Change = Callable[[str], tuple[str, ...]]


def expert_of(name: str) -> tuple[str, int, str] | None:
    """Path of the experts module, number of the expert, and the rest; None for other names."""
    found = _EXPERT.fullmatch(name)
    if found is None:
        return None
    return found["container"], int(found["expert"]), found["rest"].removeprefix(".")


@dataclass(frozen=True)
class ExpertNames:
    """The modules of routed experts, by the names of stored tensors.

    Attributes:
        parts: path of each experts module -> number of an expert -> names of its submodules,
            relative to the expert.
    """

    parts: Mapping[str, Mapping[int, tuple[str, ...]]]

    @classmethod
    def of(cls, tensors: Iterable[str]) -> ExpertNames:
        """From the names of tensors; those that do not name an expert are passed over."""
        parts: dict[str, dict[int, dict[str, None]]] = {}
        for name in tensors:
            found = expert_of(_LEAVES.sub("", name))
            if found is None:
                continue
            path, expert, rest = found
            parts.setdefault(path, {}).setdefault(expert, {})[rest] = None
        return cls({path: {e: tuple(p) for e, p in found.items()} for path, found in parts.items()})

    @cached_property
    def modules(self) -> dict[str, tuple[str, int]]:
        """Full name of every submodule of an expert -> experts module, number."""
        return {
            _join(path, expert, part): (path, expert)
            for path, experts in self.parts.items()
            for expert, parts in experts.items()
            for part in parts
        }

    def containers(self, path: str) -> tuple[str, ...]:
        """The experts modules that ``path`` means: by its whole name, its end, or its layer on.

        Settings may spell what stands before ``layers`` in another way than the tensors do.
        """
        if path in self.parts:
            return (path,)
        ends = tuple(known for known in self.parts if known.endswith(f".{path}"))
        if ends or "layers." not in path:
            return ends
        tail = path[path.index("layers.") :]
        return tuple(known for known in self.parts if known.endswith(f".{tail}") or known == tail)


@dataclass(frozen=True)
class Renaming:
    """What becomes of entries when only some experts stay.

    Attributes:
        names: the modules of the source.
        kept: path of each experts module -> the experts that stay, ascending.
    """

    names: ExpertNames
    kept: Mapping[str, tuple[int, ...]]

    def __call__(self, entry: str) -> tuple[str, ...]:
        """The entries that take the place of ``entry``: itself, another, several, or none.

        Raises:
            UnsupportedModelError: it names an expert that the checkpoint does not have, or a
                pattern cannot be read.
        """
        prefix = _PREFIX.match(entry)
        assert prefix is not None
        body = entry[prefix.end() :]
        if not prefix[0] and _LITERAL.fullmatch(body):
            return self._literal(body)
        return self._pattern(prefix[0], body)

    @cached_property
    def _number(self) -> dict[tuple[str, int], int]:
        return {
            (path, expert): number
            for path, experts in self.kept.items()
            for number, expert in enumerate(experts)
        }

    @cached_property
    def _renamed(self) -> dict[str, str | None]:
        """Name of every expert's submodule -> its name afterwards, or None where it leaves."""
        renamed: dict[str, str | None] = {}
        for name, (path, expert) in self.names.modules.items():
            number = self._number.get((path, expert))
            rest = name[len(_join(path, expert, "")) :]
            renamed[name] = None if number is None else _join(path, number, "") + rest
        return renamed

    def _literal(self, entry: str) -> tuple[str, ...]:
        found = _EXPERT.fullmatch(entry)
        if found is None:
            return (entry,)
        paths, expert = self.names.containers(found["container"]), int(found["expert"])
        paths = tuple(path for path in paths if expert in self.names.parts[path])
        if not paths:
            raise _unknown(entry)
        numbers = {self._number.get((path, expert)) for path in paths}
        if len(numbers) == 1:
            number = numbers.pop()
            if number is None:
                return ()
            return (_join(found["container"], number, "") + found["rest"],)
        places = [(path, self._number.get((path, expert))) for path in paths]
        return tuple(_join(path, n, "") + found["rest"] for path, n in places if n is not None)

    def _pattern(self, prefix: str, body: str) -> tuple[str, ...]:
        matches = matcher(prefix, body)
        matched = [name for name in self._renamed if matches(name)]
        if not matched:
            if NUMBERED_EXPERT.search(body):
                raise _unknown(prefix + body)
            return (prefix + body,)
        wanted = {new for name in matched if (new := self._renamed[name]) is not None}
        if not wanted and NUMBERED_EXPERT.search(body):
            return ()
        for candidate in (body, *self._renumbered(body, matched)):
            again = matcher(prefix, candidate)
            if wanted == {new for new in self._renamed.values() if new is not None and again(new)}:
                return (prefix + candidate,)
        # Module names for the pattern: where patterns are wanted, a name with its dots escaped.
        listed = sorted(wanted, key=_natural)
        if prefix in ("+:", "-:"):
            return tuple(f"{prefix}{re.escape(name)}" for name in listed)
        return tuple(listed)

    def _renumbered(self, body: str, matched: Iterable[str]) -> tuple[str, ...]:
        """The pattern with its one expert number replaced, for each number that may be right."""
        if len(_NUMBER_IN_PATTERN.findall(body)) != 1:
            return ()
        places = {self._number.get(self.names.modules[name]) for name in matched}
        return tuple(
            _NUMBER_IN_PATTERN.sub(str(n), body) for n in sorted(n for n in places if n is not None)
        )


def matcher(prefix: str, body: str) -> Callable[[str], bool]:
    """Whether a pattern of the settings means a module.

    With a prefix a pattern counts from the start of the name, as compressed-tensors and GPTQModel
    read it; without one, loaders differ, and anywhere in the name counts.

    Raises:
        UnsupportedModelError: it is no regular expression.
    """
    try:
        pattern = re.compile(body)
    except re.error as problem:
        raise UnsupportedModelError(
            f"the quantisation settings hold the pattern {prefix + body!r}, which cannot be read "
            f"({problem}). Correct it in the source."
        ) from None
    find = pattern.match if prefix else pattern.search
    return lambda name: find(name) is not None


def _join(path: str, expert: int, part: str) -> str:
    return f"{path}.{expert}.{part}" if part else f"{path}.{expert}"


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _unknown(entry: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the quantisation settings name an expert that the checkpoint does not store by that name "
        f"({entry!r}), so moeprune cannot renumber it. Correct the settings of the source."
    )
