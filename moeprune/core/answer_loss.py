"""The loss of answers in a run: what was measured of each domain, and what its plan predicts.

Nats per token of the answers, which the model is given and has not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainLoss:
    """Of one domain of one task.

    Attributes:
        task: name of it, or of a split of texts.
        domain: of its questions.
        tokens: of the answers.
        nats: loss of one of them, on average.
        base: the same of the model without the plan; None: not measured.
        predicted: change that the plan predicts; None: it does not.
    """

    task: str
    domain: str
    tokens: int
    nats: float
    base: float | None = None
    predicted: float | None = None

    @property
    def change(self) -> float | None:
        """Loss with the plan less that without it."""
        return None if self.base is None else self.nats - self.base

    def to_json(self) -> dict[str, Any]:
        """What ``run.json`` holds of the domain."""
        known = {"base": self.base, "predicted": self.predicted}
        return {
            "tokens": self.tokens,
            "nats": self.nats,
            **{key: value for key, value in known.items() if value is not None},
        }


def domain_losses(body: Mapping[str, Any]) -> Iterator[DomainLoss]:
    """The ``answer_loss`` of a run, domain by domain."""
    for task, own in body.items():
        for domain, found in own["domains"].items():
            yield DomainLoss(task=task, domain=domain, **found)


def check_answer_loss(body: Any, where: object) -> Mapping[str, Any]:
    """The ``answer_loss`` of a run as it is read: people and other versions may write it, too.

    Args:
        body: task -> ``inputs`` and ``domains``; ``{}``: the run says nothing of it.
        where: the file, for messages.

    Raises:
        RunError: it is of another form.
    """
    if not isinstance(body, dict) or not all(map(_sound, body.values())):
        raise RunError(
            f"{where}: answer_loss is not of the form that this moeprune writes. Evaluate again."
        )
    return body


def _sound(task: Any) -> bool:
    return (
        isinstance(task, dict)
        and isinstance(task.get("inputs"), str)
        and isinstance(task.get("domains"), dict)
        and bool(task["domains"])
        and all(map(_sound_domain, task["domains"].values()))
    )


def _sound_domain(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and {"tokens", "nats"} <= set(found) <= {"tokens", "nats", "base", "predicted"}
        and type(found["tokens"]) is int
        and found["tokens"] > 0
        and all(type(found[key]) in (int, float) for key in found)
    )
