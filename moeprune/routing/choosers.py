"""Where a router of a live model chooses, and how it is told another number of experts.

Most routers return logits, weights and ids, and read their k from an attribute of their own or
from a config that the whole model shares. DBRX's router returns logits alone, and its block
chooses. What looks its choice up in a table has no k at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from moeprune.errors import UnsupportedModelError, VerificationError

_BLOCK_METHOD = "route_tokens_to_experts"
_SHARED_KEY = "top_k_experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """The method that chooses experts.

    Attributes:
        name: of the router, for messages.
        owner: the module that has the method.
        method: its name.
        knob: k is an attribute of this object; None: the choice is looked up.
        key: the attribute.
        logits: whether logits come first in what the method returns.
    """

    name: str
    owner: nn.Module
    method: str
    knob: Any
    key: str
    logits: bool

    def ask(self, call: Callable[[], Any], k: int) -> tuple[Any, ...]:
        """Logits, weights, ids and more, of k experts.

        Args:
            call: the method as it was, with its arguments.
            k: experts to choose.

        Raises:
            VerificationError: another number came back.
        """
        former = getattr(self.knob, self.key)
        setattr(self.knob, self.key, k)
        try:
            found = call()
        finally:
            setattr(self.knob, self.key, former)
        found = tuple(found) if self.logits else (None, *found)
        wide = {part.shape[-1] for part in found[1:3]}
        if wide != {k} or found[2].is_floating_point():  # some versions return ids first
            raise VerificationError(
                f"{self.name}: asked for {k} experts a token, its router returned "
                f"{' and '.join(map(str, sorted(wide)))}; no policy can be applied to this model."
            )
        return found

    def answer(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the method returns, of logits, weights, ids and more."""
        return found if self.logits else found[1:]


def chooser_of(model: nn.Module, router: nn.Module, *, name: str) -> Chooser:
    """Where ``router``, called ``name`` in ``model``, chooses.

    Raises:
        UnsupportedModelError: nothing that moeprune knows.
    """
    block = model.get_submodule(name.rpartition(".")[0])
    place = {"name": name, "owner": router, "method": "forward", "logits": True, "key": "top_k"}
    if hasattr(router, "tid2eid"):
        return Chooser(**place | {"knob": None})  # type: ignore[arg-type]
    if hasattr(router, "top_k"):
        return Chooser(**place | {"knob": router})  # type: ignore[arg-type]
    if hasattr(getattr(router, "config", None), _SHARED_KEY):
        own = copy.copy(router.config)
        return Chooser(**place | {"knob": own, "key": _SHARED_KEY})  # type: ignore[arg-type]
    if hasattr(block, "top_k") and hasattr(block, _BLOCK_METHOD):
        place |= {"owner": block, "method": _BLOCK_METHOD, "logits": False}
        return Chooser(**place | {"knob": block})  # type: ignore[arg-type]
    raise UnsupportedModelError(
        f"{name}: a {type(router).__name__} has no number of experts that can be set; --k1 and "
        "--k2 do not fit this model. Leave them out."
    )


@contextmanager
def replaced(chooser: Chooser, method: Callable[..., Any]) -> Iterator[None]:
    """Within the block, ``method`` stands in the place of the chooser's own."""
    attributes = chooser.owner.__dict__
    # On the instance, never the class: accelerate shadows class forwards on dispatched models.
    changes = {chooser.method: method}
    if chooser.key == _SHARED_KEY:
        changes["config"] = chooser.knob
    former = {key: attributes[key] for key in changes if key in attributes}
    attributes.update(changes)
    try:
        yield
    finally:
        for key in changes:
            del attributes[key]
        attributes.update(former)
