"""Long answers that are looked at for loops: what users of a pruned model meet first.

An answer is right if it did not fall into a repetition; whether its budget was used up is told
apart, since a model that has much to say is not broken.
"""

from __future__ import annotations

from typing import Any

from moeprune.core.sample import Sample
from moeprune.core.tasks import Task
from moeprune.evaluate.kinds.generate import requests
from moeprune.evaluate.loops import distinct_share, loop_of
from moeprune.evaluate.requests import Request
from moeprune.evaluate.written import Answer

__all__ = ["WRITES", "requests", "sample"]

WRITES = True
_GRAM = 4


def sample(task: Task, request: Request, answer: Answer) -> Sample:
    """Whether the answer loops; ``details`` hold the loop and the text."""
    ids = answer.ids.tolist()
    found = loop_of(ids)
    distinct = distinct_share(ids, _GRAM)
    details: dict[str, Any] = {"text": answer.text, "cut": request.cut}
    if found is not None:
        details |= {"period": found.period, "covered": found.covered}
    return Sample(
        task=task.name,
        domain=request.question.domain,
        id=request.question.id,
        seed=request.seed,
        input=request.sha256,
        metrics={"loop": float(found is not None), "distinct_4": distinct},
        correct=found is None,
        prediction="no loop" if found is None else "loop",
        answer="no loop",
        truncated=answer.truncated,
        tokens=int(answer.ids.size),
        details=details,
    )
