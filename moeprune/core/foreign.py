"""What libraries raise about a user's files, in one line of our own."""

from __future__ import annotations

import contextlib

from moeprune.errors import MoePruneError

# Of them, every error is about a file; the client of the Hub also checks the types of a config.
_LIBRARIES = (
    "datasets",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "jinja2",
    "safetensors",
    "tokenizers",
)


class foreign_errors(contextlib.AbstractContextManager[None]):  # noqa: N801
    """Turn what a library raises about the user's files into one line of our own.

    Errors of our own, and those that no file can cause (``AssertionError``, ``NameError``, a full
    memory), pass through. The Rust readers of tokenizers raise bare ``Exception``, so the class is
    compared, not caught.

    Args:
        what: the start of the message: the thing that could not be read.
        way_out: its end.
        error: the class to raise.
        also: further classes that here come from the user's files: a library that builds a model
            asserts and divides by what config.json says.
    """

    _kinds: tuple[type[BaseException], ...] = (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        ImportError,
    )

    def __init__(
        self,
        what: str,
        way_out: str,
        *,
        error: type[MoePruneError],
        also: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._what, self._way_out, self._error = what, way_out, error
        self._kinds = (*self._kinds, *also)

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Raise the one-line error in place of ``problem``, if it is one of theirs."""
        if problem is None or isinstance(problem, MoePruneError):
            return
        base = type(problem).__module__.partition(".")[0] in _LIBRARIES
        if isinstance(problem, self._kinds) or type(problem) is Exception or base:
            lines = str(problem).split("\n", 3)[:3]
            said = [line.strip() for line in lines if line.strip()]
            # A first line that ends in a colon says where, the next one what.
            said = said[: 2 if said and said[0].endswith(":") else 1]
            reason = " ".join(said).rstrip(". ") or type(problem).__name__
            raise self._error(f"{self._what} ({reason[:300]}). {self._way_out}") from problem
