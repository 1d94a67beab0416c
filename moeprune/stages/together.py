"""What each process of a launch does of a calibration, and what one of them does for all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprune.artefact import canonical_json, parse_json, sha256_bytes
from moeprune.core.domain_stats import MAXIMA, Array
from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import MismatchError
from moeprune.observe.processes import Processes
from moeprune.stages.journal import Journal

if TYPE_CHECKING:
    from moeprune.observe.batches import Share
    from moeprune.observe.domains import Corpus
    from moeprune.observe.generate import Completion


class Work:
    """How the work of one calibration is divided.

    Attributes:
        crew: the processes.
        spread: they share the experts of one model, and all of them read every text.
    """

    def __init__(self, crew: Processes, *, expert_parallel: int) -> None:
        self.crew = crew
        self.spread = expert_parallel > 1
        self.speaks = crew.launch.speaks
        self._told: dict[str, int] = {}

    @property
    def number(self) -> int:
        """Of this process among those that share the texts."""
        return 0 if self.spread else self.crew.launch.rank

    @property
    def sharers(self) -> int:
        """Processes that share the texts."""
        return 1 if self.spread else self.crew.launch.world

    @property
    def part(self) -> int | None:
        """Which of the processes that share the experts this is; None: it has all of them."""
        return self.crew.launch.rank if self.spread else None

    def request(self) -> dict[str, Any]:
        """Option -> value, of what decides what this process keeps."""
        return {"--expert-parallel": self.crew.launch.world} if self.spread else {}

    def agreed(self, wish: bool) -> bool:
        """Whether to do what only all together can do: in lockstep, if one of them wishes it."""
        return self.crew.agree(wish) if self.spread else wish

    def shares(self, sizes: Sequence[int]) -> list[Share]:
        """The batches of this process, dealt on from domain to domain.

        Args:
            sizes: batches of each domain.
        """
        from moeprune.observe.batches import Share

        firsts = itertools.accumulate(sizes, initial=0)
        return [Share(self.number, self.sharers, first) for first in firsts][: len(sizes)]

    def share(
        self, rounds: Sequence[Sequence[Corpus]], *, batch_tokens: int
    ) -> Callable[[Corpus], Share]:
        """Which batches of a part of a domain are this process's.

        Args:
            rounds: all parts.
            batch_tokens: of a batch.
        """
        from moeprune.observe.batches import num_batches

        parts = [part for each in rounds for part in each]
        sizes = [num_batches(part, max_tokens=batch_tokens) for part in parts]
        shares = dict(zip(map(id, parts), self.shares(sizes), strict=True))
        return lambda part: shares[id(part)]

    def go_on(self, journal: Journal) -> None:
        """Begin where a stopped launch ended, all processes with what all of them found then.

        Raises:
            MismatchError: processes that share the experts were not at the same place.
        """
        self.check_lockstep(
            [journal.curve, *([n, d.rounds, d.batches] for n, d in journal.domains.items())]
        )
        if self.crew.launch.world > 1:
            # Some have saved after a round's end, others before it; it was the same for all.
            told = np.frombuffer(canonical_json(journal.curve).encode(), np.uint8)
            curves = [
                parse_json(values.astype(np.uint8).tobytes().decode())
                for values in self.crew.gathered(told.astype(np.int64))
            ]
            journal.curve = max(curves, key=len)

    def check_same(self, **values: Any) -> None:
        """Check that all processes were given the same: model, texts, options.

        Raises:
            MismatchError: they were not.
        """
        for what, value in values.items():
            self.crew.check_same(what, sha256_bytes(canonical_json(value).encode()))

    def check_lockstep(self, done: Any) -> None:
        """Check that processes which share the experts begin at the same place.

        Args:
            done: what is done already, plain JSON values.

        Raises:
            MismatchError: a launch was killed while they saved it.
        """
        if not self.spread:
            return
        try:
            self.check_same(progress=done)
        except MismatchError as problem:
            raise MismatchError(
                "the processes of the launch that is continued were not at the same place. "
                "Give --no-resume to begin anew."
            ) from problem

    def own_file(self, path: Path) -> Path:
        """Where this process keeps what only it has, of a file that is kept beside the output."""
        launch = self.crew.launch
        return path if launch.world == 1 else _numbered(path, f"{launch.rank}-of-{launch.world}")

    def check_begun(self, path: Path) -> None:
        """Check that what an interrupted launch has left beside the output is of as many processes.

        Raises:
            MismatchError: it is not.
        """
        world = self.crew.launch.world
        for other, of in _left(path):
            if of != world:
                raise MismatchError(
                    f"{other} was begun by a launch of {of} process{'es' * (of > 1)}, this one has "
                    f"{world}. Start {of} to go on, or give --no-resume to begin anew."
                )

    def clear(self, *paths: Path) -> None:
        """The result is written: remove what led to it, of all launches."""
        self.crew.meet()
        for path in paths:
            for other, _ in _left(path):
                other.unlink(missing_ok=True)

    def heard(self, on_progress: OnProgress) -> OnProgress:
        """Reports of this process as reports of all, in the process that speaks."""
        if self.crew.launch.world == 1:
            return on_progress

        def report(own: Progress) -> None:
            more = own.done - self._told.get(own.stage, 0)
            self._told[own.stage] = own.done
            done = own.done if self.spread else self.crew.count(own.stage, more)
            if self.speaks:
                on_progress(replace(own, done=done))

        return report

    def asked_to_stop(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """Whether to stop after a batch: asked to, or because another process has ended."""
        if self.crew.launch.world == 1:
            return stop
        if self.spread:  # all must end after the same batch, or those that go on wait for ever
            return lambda: self.agreed(stop())
        return lambda: stop() or self.crew.poll()

    def added(self, sums: Mapping[str, Mapping[str, Array]]) -> dict[str, Mapping[str, Array]]:
        """The sums of all processes, by domain."""
        return {name: self.crew.added(own, maxima=MAXIMA) for name, own in sums.items()}

    def completions(self, own: Mapping[int, Completion]) -> tuple[Completion, ...]:
        """What all processes wrote after the prompts of a domain, in their order.

        Args:
            own: number of the prompt -> what this process wrote after it.
        """
        from moeprune.observe.generate import Completion

        found = dict(own)
        if self.sharers > 1:
            told = [
                part.astype(np.int64)
                for row, one in sorted(own.items())
                for part in (np.array([row, one.finished, one.ids.size]), one.ids)
            ]
            for values in self.crew.gathered(np.concatenate([np.zeros(0, np.int64), *told])):
                at = 0
                while at < values.size:
                    row, finished, size = values[at : at + 3].tolist()
                    ids = values[at + 3 : at + 3 + size].astype(np.int32)
                    found[row] = Completion(ids=ids, finished=bool(finished))
                    at += 3 + size
        return tuple(found[row] for row in sorted(found))


def _numbered(path: Path, number: str) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _left(path: Path) -> list[tuple[Path, int]]:
    """The files of a name and of its numbered ones, each with the processes it is one of."""
    wanted = re.compile(rf"{re.escape(path.name)}(?:\.[0-9]+-of-([0-9]+))?")
    found = [(other, wanted.fullmatch(other.name)) for other in path.parent.iterdir()]
    return sorted((other, int(named[1] or 1)) for other, named in found if named is not None)
