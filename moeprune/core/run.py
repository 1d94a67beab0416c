"""A run folder: what was asked of one variant of a model, and what it answered.

``run.json`` says what was run, on what, with which seeds and versions; ``samples.jsonl`` has a line
for each question. Two of them are joined by (task, id, seed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema, read_json, readable_json, write_bytes
from moeprune.core.answer_loss import check_answer_loss
from moeprune.core.sample import Key, Sample, read_samples, sound
from moeprune.core.selection_record import check_selection
from moeprune.errors import RunError
from moeprune.kinds import wanted

SCHEMA = "moeprune.run/1"
RUN_FILE = "run.json"
SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one variant answered.

    Attributes:
        name: of the variant, as tables show it.
        model: ``name``, ``fingerprint`` and, of a MoE, its layers and experts.
        variant: what was done to it: ``plan`` (sha256, method, ratio, …) or nothing.
        tasks: name -> ``kind``, ``sha256``, ``protocol``, ``summary``.
        samples: sorted by the order of tasks, of questions, and by seed.
        probe: ``inputs`` and ``logits``, hashes that tell two variants apart; empty where unknown.
        agreement: how far it selects another model's experts, in all, by domain and by layer; empty
            where that was not asked.
        answer_loss: task -> ``inputs`` (sha256) and, of each of ``domains``, the loss of its right
            answers, see :class:`moeprune.core.answer_loss.DomainLoss`; empty likewise.
        guards: what the protocol guards found: ``name``, ``level``, ``task``, ``text``.
        provenance: dtype, device, seeds, versions.
    """

    name: str
    model: Mapping[str, Any] = field(default_factory=dict)
    variant: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    probe: Mapping[str, str] = field(default_factory=dict)
    agreement: Mapping[str, Any] = field(default_factory=dict)
    answer_loss: Mapping[str, Any] = field(default_factory=dict)
    guards: tuple[Mapping[str, Any], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[Key] = set()
        for sample in self.samples:
            if sample.key in seen:
                task, id_, seed = sample.key
                raise RunError(
                    f"run {self.name!r} answers question {id_!r} of task {task!r} (seed {seed}) "
                    "twice, so it cannot be joined. Keep one of them."
                )
            seen.add(sample.key)

    @property
    def by_key(self) -> dict[Key, Sample]:
        """(task, id, seed) -> answer."""
        return {sample.key: sample for sample in self.samples}

    def of_task(self, task: str) -> tuple[Sample, ...]:
        """The answers of one task."""
        return tuple(sample for sample in self.samples if sample.task == task)

    def header(self) -> dict[str, Any]:
        """What ``run.json`` holds."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": dict(self.model),
            "variant": dict(self.variant),
            "tasks": {name: dict(task) for name, task in self.tasks.items()},
            "order": list(self.tasks),
            "probe": dict(self.probe),
            **({"agreement": dict(self.agreement)} if self.agreement else {}),
            **({"answer_loss": dict(self.answer_loss)} if self.answer_loss else {}),
            "guards": [dict(guard) for guard in self.guards],
            "provenance": dict(self.provenance),
        }

    def save(self, folder: Path) -> None:
        """Write both files into a folder that exists; ``run.json`` last.

        Raises:
            OutputError: they cannot be written.
        """
        write_bytes(folder / SAMPLES_FILE, _text(self.samples).encode())
        write_bytes(folder / RUN_FILE, readable_json(self.header()).encode())

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Read a run folder.

        Raises:
            RunError: it is none, or a file of it is malformed.
        """
        body = read_json(folder / RUN_FILE, error=RunError, what=wanted(SCHEMA))
        check_schema(body, schema=SCHEMA, path=folder / RUN_FILE, error=RunError)
        where = folder / RUN_FILE
        for name, kind in _HEADER.items():
            if not isinstance(body.get(name), kind):
                raise RunError(f"{where}: {name} is {body.get(name)!r}, which is not of its type.")
        _check_items(body, where)
        order: Sequence[str] = body["order"]
        if sorted(order) != sorted(body["tasks"]):
            raise RunError(f"{where}: order and tasks do not name the same tasks.")
        samples = tuple(read_samples(folder / SAMPLES_FILE))
        for sample in samples:
            if sample.task not in body["tasks"]:
                raise RunError(
                    f"{folder / SAMPLES_FILE} answers task {sample.task!r}, which {RUN_FILE} does "
                    "not name. The two files are not of one run."
                )
        return cls(
            name=body["name"],
            model=body["model"],
            variant=body["variant"],
            tasks={name: body["tasks"][name] for name in order},
            samples=samples,
            probe=body["probe"],
            agreement=check_selection(body.get("agreement", {}), where),
            answer_loss=check_answer_loss(body.get("answer_loss", {}), where),
            guards=tuple(body["guards"]),
            provenance=body["provenance"],
        )


_HEADER: Mapping[str, type] = {
    "name": str,
    "model": dict,
    "variant": dict,
    "tasks": dict,
    "order": list,
    "probe": dict,
    "guards": list,
    "provenance": dict,
}


# what the values of a key of the header are
_ITEMS: Mapping[str, type] = {"tasks": dict, "order": str, "probe": str, "guards": dict}


def _check_items(body: Mapping[str, Any], where: Path) -> None:
    for name, kind in _ITEMS.items():
        held = body[name]
        for item in held.values() if isinstance(held, dict) else held:
            if not isinstance(item, kind):
                raise RunError(f"{where}: {name} holds {item!r}, which is not of its type.")
    if not sound(body):
        raise RunError(f"{where} holds NaN or Infinity, or nests too deeply.")


def _text(samples: Iterable[Sample]) -> str:
    return "".join(f"{sample.to_line()}\n" for sample in samples)
