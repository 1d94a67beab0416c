"""In whose numbers a model counts its experts: its own, or those of the model it was made from.

L MoE layers, E experts of a layer, K experts chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.layout import MoeLayout
from moeprune.errors import MismatchError, UnsupportedModelError
from moeprune.stages.eval_model import AskedModel, open_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A model whose experts can be named beside another's.

    Attributes:
        asked: its files.
        layout: of its experts; of layers with different counts, its source's with its own counts.
        origin: fingerprint of the model whose numbers count: this one, or that it was made from.
        experts: (L,) experts of that model.
        keep: (L,) numbers of those that are left, None where all are.
    """

    asked: AskedModel
    layout: MoeLayout
    origin: str
    experts: tuple[int, ...]
    keep: tuple[tuple[int, ...], ...] | None

    def of_origin(self, ids: NDArray[Any], row: int) -> NDArray[np.int64]:
        """The numbers of chosen experts in the model whose numbers count; −1: an empty one.

        Idle choices (of no expert) come behind the last expert.
        """
        found = ids.astype(np.int64)
        if self.keep is None:
            return found
        own = self.layout.num_experts[row]
        table = np.full(own + self.layout.idle_experts, -1, np.int64)
        table[: len(self.keep[row])] = self.keep[row]
        table[own:] = self.experts[row] + np.arange(self.layout.idle_experts)
        return np.asarray(table[found])


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The model that is evaluated and the one beside it, checked; nothing is loaded.

    Attributes:
        mine: the model.
        theirs: the other one.
    """

    mine: Numbered
    theirs: Numbered

    def request(self) -> dict[str, Any]:
        """What tells the other model from another one."""
        return {"--agreement-with": self.theirs.asked.identity()}


def _views(asked: AskedModel, other: AskedModel) -> list[Numbered]:
    """A model in its own numbers, and in those of the model that it was made from.

    Args:
        asked: the model.
        other: the one beside it, which may be its source.

    Raises:
        UnsupportedModelError: it has no experts, or none that are known.
    """
    record = asked.export
    plan = None if record is None else record.plan
    layout = asked.layout
    source = other.opened
    if layout is None and plan is not None and source is not None:
        # Layers of different counts state no layout of their own.
        of_it = plan.model_fingerprint == source.facts.fingerprint
        counts = tuple(map(len, plan.keep))
        layout = replace(source.layout, num_experts=counts) if of_it else None
    if layout is None:
        assert asked.problem is not None
        if plan is not None:
            raise UnsupportedModelError(
                f"{asked.name} has layers of different numbers of experts, and which modules hold "
                f"them is read off the model that it was made from ({plan.model_name}). Name that "
                "one as the other model."
            )
        raise asked.problem
    own = Numbered(
        asked=asked,
        layout=layout,
        origin=asked.fingerprint,
        experts=layout.num_experts,
        keep=None,
    )
    if record is None:
        return [own]
    if plan is None:
        return [own, replace(own, origin=record.source[1] or asked.fingerprint)]
    told = {"origin": plan.model_fingerprint, "experts": plan.num_experts, "keep": plan.keep}
    return [own, replace(own, **told)]  # type: ignore[arg-type]


def _beside(mine: Sequence[Numbered], theirs: Sequence[Numbered]) -> Beside:
    """Two models in the numbers of one.

    Raises:
        MismatchError: another family, other layers, or experts that are not the same ones.
    """
    one, other = mine[-1], theirs[-1]
    first, second = one.asked.name, other.asked.name
    for what, own, its in (
        ("family", one.layout.model_type, other.layout.model_type),
        ("MoE layers", one.layout.layer_ids, other.layout.layer_ids),
        ("expert sets", one.layout.sets, other.layout.sets),
        ("passes", one.layout.passes, other.layout.passes),
        ("idle experts", one.layout.idle_experts, other.layout.idle_experts),
    ):
        if own != its:
            raise MismatchError(
                f"--agreement-with {second}: its experts are not those of {first} ({what}: "
                f"{_short(its)} there, {_short(own)} here). Name a model of the same weights in "
                "other numbers, or the one that it was made from."
            )
    for one, other in itertools.product(mine, theirs):
        if one.origin == other.origin:
            return Beside(mine=one, theirs=other)
    for one, beside in ((mine[-1], second), (theirs[-1], first)):
        record = one.asked.export
        if one.keep is not None and record is not None and record.plan is not None:
            raise MismatchError(
                f"--agreement-with {second}: {one.asked.name} was pruned from "
                f"{record.plan.model_name} (fingerprint {one.origin[:12]}), {beside} is not that "
                "one nor made from it, so nobody knows which experts are the same. Name the model "
                "that it was made from."
            )
    if mine[0].experts != theirs[0].experts:
        raise MismatchError(
            f"--agreement-with {second}: it has {_short(theirs[0].experts)} experts in its layers, "
            f"{first} has {_short(mine[0].experts)}, and no moeprune.json says which are the same. "
            "Name a model with the same experts."
        )
    return Beside(mine=mine[0], theirs=theirs[0])


def open_beside(model: str | Path, asked: AskedModel, *, trust_remote_code: bool) -> Beside:
    """Open the other model.

    Args:
        model: folder or Hub id.
        asked: the model that is evaluated.
        trust_remote_code: run code that comes with it.

    Raises:
        MismatchError: their experts are not the same ones.
        MoePruneError: it cannot be read, or has no experts.
    """
    other = open_asked(model)
    found = _beside(_views(asked, other), _views(other, asked))
    other.check(trust_remote_code=trust_remote_code)
    return found


def _short(value: object) -> str:
    if isinstance(value, tuple):
        if len(set(value)) == 1:
            value = f"{len(value)} × {value[0]}"
        else:
            value = ", ".join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
