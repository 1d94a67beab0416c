"""What a calibration has measured so far, in a file beside its output, from which it goes on.

The file holds whole sums and how many batches are in them, never a part of a batch. Sums are added
in the order of the batches, so a run that goes on gives the bytes of a run that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moeprune.artefact import canonical_json, check_schema, parse_json, write_bytes
from moeprune.core.domain_stats import Array, fields
from moeprune.errors import (
    CheckpointError,
    MismatchError,
    OutputError,
    StatsError,
    UnsupportedModelError,
)

SCHEMA = "moeprune.progress/1"
# Saving may take a hundredth of the time that it protects.
_SHARE = 100


Arrays = Mapping[str, Array]


@dataclass(slots=True)
class Measured:
    """One domain, measured in part or whole.

    Attributes:
        rounds: that are done.
        batches: of the round in progress that are in the sums.
        tokens: in the sums.
        arrays: field -> sums.
    """

    rounds: int = 0
    batches: int = 0
    tokens: int = 0
    arrays: Arrays = field(default_factory=dict, repr=False)


class Journal:
    """The progress of one calibration.

    Attributes:
        path: of the file; None: nothing is kept.
        domains: name -> what is measured of it.
        curve: what was found after each round, plain JSON values.
    """

    def __init__(
        self,
        path: Path | None,
        request: Mapping[str, Any],
        agree: Callable[[bool], bool] = bool,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        """Begin anew; see :meth:`open`."""
        self.path = path
        self.domains: dict[str, Measured] = {}
        self.curve: list[dict[str, Any]] = []
        self._request = _as_read(request)
        self._settled: dict[str, Any] = {}
        self._saved = time.monotonic()
        self._cost = 0.0
        self._agree = agree
        self._on_warning = on_warning
        self._kept = False  # that the file can be written is known
        self._failed = False

    @classmethod
    def open(
        cls,
        path: Path | None,
        request: Mapping[str, Any],
        *,
        resume: bool,
        agree: Callable[[bool], bool] = bool,
        on_warning: Callable[[str], None] | None = None,
    ) -> Journal:
        """Go on where the file says, or begin anew where there is none.

        Args:
            path: of the file; None: nothing is kept.
            request: option -> value, of everything that decides what is measured.
            resume: False: what the file holds is not used, and is lost once progress is saved.
            agree: told whether saving is due here; whether it is due for all.
            on_warning: told where saving fails later on.

        Raises:
            MismatchError: the file is of another request.
            StatsError: it cannot be read.
        """
        journal = cls(path, request, agree, on_warning)
        if path is not None and resume and path.exists():
            journal._load(path)
        return journal

    def settled(self, name: str) -> Any:
        """What the run that is continued settled, None where there is none."""
        return self._settled.get(name)

    def settle(self, name: str, value: Any) -> None:
        """State what was not known at the beginning.

        Raises:
            MismatchError: the run that is continued had another value.
        """
        value = _as_read(value)
        if name in self._settled:
            self._check(name, self._settled[name], value)
        self._settled[name] = value

    def keep(self, *, now: bool = False) -> None:
        """Save where it costs little against the time since it was done last, or ``now``.

        Once that has worked, a disk that is full for a while is told, and does not end the job.

        Raises:
            OutputError: the file cannot be written, and never could.
        """
        if not now and not self._agree(time.monotonic() - self._saved >= _SHARE * self._cost):
            return
        start = time.monotonic()
        try:
            self.save()
        except OutputError as problem:
            if not self._kept:
                raise
            self._saved = time.monotonic()
            self._cost = max(self._cost, self._saved - start)
            if not self._failed and self._on_warning is not None:
                again = "The run goes on, and tries again; what was saved before is kept."
                self._on_warning(f"{problem} {again}")
            self._failed = True

    def save(self) -> None:
        """Write everything; the file is the old one or the whole new one.

        Raises:
            OutputError: it cannot be written.
        """
        if self.path is None:
            return
        from safetensors.numpy import save

        start = time.monotonic()
        tensors = {
            f"{name}/{key}": np.ascontiguousarray(array)
            for name, domain in self.domains.items()
            for key, array in sorted(domain.arrays.items())
        }
        body = {
            "schema": SCHEMA,
            "request": self._request,
            "settled": self._settled,
            "curve": self.curve,
            "domains": [
                {
                    "name": name,
                    "rounds": domain.rounds,
                    "batches": domain.batches,
                    "tokens": domain.tokens,
                }
                for name, domain in self.domains.items()
            ],
        }
        write_bytes(self.path, save(tensors, metadata={"moeprune": canonical_json(body)}))
        self._saved = time.monotonic()
        self._cost = self._saved - start
        self._kept, self._failed = True, False

    def remove(self) -> None:
        """The result is written: what led to it is not needed any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @contextmanager
    def sound(self) -> Iterator[None]:
        """A block in which the file goes if the model turns out to give no sums to go on from."""
        try:
            yield
        except (CheckpointError, StatsError, UnsupportedModelError):
            self.remove()
            raise

    def _load(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        way_out = "Give --no-resume to begin anew."
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            body = parse_json(metadata["moeprune"])
            check_schema(body, schema=SCHEMA, path=path, error=StatsError)
            self._settled = dict(body["settled"])
            self.curve = list(body["curve"])
            begun = dict(body["request"])
            wanted = fields(loss="--loss" in begun)
            for entry in body["domains"]:
                name = entry["name"]
                begun_it = f"{name}/tokens" in arrays
                self.domains[name] = Measured(
                    rounds=int(entry["rounds"]),
                    batches=int(entry["batches"]),
                    tokens=int(entry["tokens"]),
                    arrays={key: arrays[f"{name}/{key}"] for key in wanted} if begun_it else {},
                )
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as problem:
            raise StatsError(
                f"{path} cannot be read as progress: {problem}. {way_out}"
            ) from problem
        except StatsError as problem:
            raise StatsError(f"{problem} {way_out}") from problem
        # The model first: another one differs in more than its name.
        for name in sorted(
            begun.keys() | self._request.keys(), key=lambda name: (name != "model", name)
        ):
            self._check(name, begun.get(name), self._request.get(name))

    def _check(self, name: str, begun: Any, now: Any) -> None:
        if begun == now:
            return
        said = f" ({begun!r} then, {now!r} now)"
        raise MismatchError(
            f"{self.path} was begun with another {name}{said if len(said) < 120 else ''}. Go on "
            "with the same, or give --no-resume to begin anew."
        )


def _as_read(value: Any) -> Any:
    """A value as it comes back from the file: a tuple is a list there."""
    return parse_json(canonical_json(value))
