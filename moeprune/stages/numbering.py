"""In whose numbers a model counts its experts: its own, or those of the model it was made from.

L MoE layers, E experts of a layer, K experts chosen.
"""

from __future__ import annotations

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
        origin: fingerprint of the model whose numbers count.
        experts: (L,) experts of that model.
        keep: (L,) numbers of those that are left, None where all are.
    """

    asked: AskedModel
    layout: MoeLayout
    origin: str
    experts: tuple[int, ...]
    keep: tuple[tuple[int, ...], ...] | None

    def of_origin(self, ids: NDArray[Any], row: int) -> NDArray[np.int64]:
        """The numbers of chosen experts in the model that it was made from; −1: an empty one.

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


def _numbered(asked: AskedModel, other: AskedModel) -> Numbered:
    """How the experts of one of two models are numbered.

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
    if plan is not None:
        return Numbered(
            asked=asked,
            layout=layout,
            origin=plan.model_fingerprint,
            experts=plan.num_experts,
            keep=plan.keep,
        )
    made_from = "" if record is None else record.source[1]
    return Numbered(
        asked=asked,
        layout=layout,
        origin=made_from or asked.fingerprint,
        experts=layout.num_experts,
        keep=None,
    )


def _check_beside(one: Numbered, other: Numbered) -> None:
    """Check that what both select can be compared.

    Raises:
        MismatchError: another family, other layers, or experts that are not the same ones.
    """
    first, second = one.asked.name, other.asked.name
    for what, mine, theirs in (
        ("family", one.layout.model_type, other.layout.model_type),
        ("MoE layers", one.layout.layer_ids, other.layout.layer_ids),
        ("expert sets", one.layout.sets, other.layout.sets),
        ("passes", one.layout.passes, other.layout.passes),
        ("idle experts", one.layout.idle_experts, other.layout.idle_experts),
    ):
        if mine != theirs:
            raise MismatchError(
                f"--agreement-with {second}: its {what} are {_short(theirs)}, those of {first} are "
                f"{_short(mine)}, so their experts are not the same ones. Name a model of the same "
                "weights in other numbers, or the one that it was made from."
            )
    if one.origin == other.origin:
        return
    pruned = [each for each in (one, other) if each.keep is not None]
    if pruned:
        plan = pruned[0].asked.export
        assert plan is not None and plan.plan is not None
        beside = second if pruned[0] is one else first
        raise MismatchError(
            f"--agreement-with {second}: {pruned[0].asked.name} was pruned from "
            f"{plan.plan.model_name} (fingerprint {pruned[0].origin[:12]}), {beside} is not that "
            "one nor made from it, so nobody knows which experts are the same. Name the model that "
            "it was made from."
        )
    if one.experts != other.experts:
        raise MismatchError(
            f"--agreement-with {second}: it has {_short(other.experts)} experts in its layers, "
            f"{first} has {_short(one.experts)}, and no moeprune.json says which are the same. "
            "Name a model with the same experts."
        )


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
    found = Beside(mine=_numbered(asked, other), theirs=_numbered(other, asked))
    _check_beside(found.mine, found.theirs)
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
