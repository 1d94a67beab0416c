"""What the ``moeprune`` block of a served model's config asks of a runtime; pure, nothing of vLLM.

k₁ experts run per token, weighed by p[:k₁] / Σ p[:k₂]; a layer has the number of experts that the
block states for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moeprune.errors import CheckpointError, UnsupportedModelError

FORMAT = 1
COUNT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBlock:
    """The block, read and checked.

    Attributes:
        k1: experts that run per token; None: as many as the model's own routers choose.
        k2: ranks in the denominator of the weights; None with ``k1``.
        renormalises: whether the family divides the weights by their sum; None: not stated.
        counts: experts of each decoder layer, None for a layer without; empty: all alike.
    """

    k1: int | None = None
    k2: int | None = None
    renormalises: bool | None = None
    counts: tuple[int | None, ...] = ()

    @property
    def widest(self) -> int:
        """The largest count: what the config states for all layers."""
        return max((count for count in self.counts if count is not None), default=0)

    def count_of(self, name: str) -> int | None:
        """Experts of the layer that a module is of; None: not stated.

        Args:
            name: dotted name of the module, with the number of its decoder layer.
        """
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if not numbers or numbers[0] >= len(self.counts):  # next-token layers come after the rest
            return None
        return self.counts[numbers[0]]


def served_block(config: object) -> ServedBlock | None:
    """The block of a model's config; None: an ordinary model.

    Args:
        config: what transformers makes of config.json.

    Raises:
        CheckpointError: the block is malformed, or of a later format.
    """
    block = getattr(config, "moeprune", None)
    if not isinstance(block, Mapping) or not {"k1", "k2", "experts_per_layer"} & set(block):
        return None
    k1, k2, renormalises = (block.get(key) for key in ("k1", "k2", "renormalises"))
    counts = block.get("experts_per_layer", ())
    is_right = (
        block.get("format") == FORMAT
        and ((k1 is None and k2 is None) or (_is_count(k1) and _is_count(k2)))
        and (renormalises is None or isinstance(renormalises, bool))
        and isinstance(counts, Sequence)
        and all(count is None or _is_count(count) for count in counts)
    )
    if not is_right:
        raise CheckpointError(
            f"config.json: this moeprune cannot read the moeprune block {dict(block)!r}. Update "
            "moeprune, or export the model again."
        )
    return ServedBlock(k1=k1, k2=k2, renormalises=renormalises, counts=tuple(counts))


def ranks(
    block: ServedBlock,
    *,
    experts: int,
    groups: tuple[int, int] | None,
    renormalises: bool,
    biased: bool = True,
) -> tuple[int, int | None]:
    """k₁ and k₂ of one layer, as :func:`moeprune.routing.rule.reroute` takes them.

    Args:
        block: with k₁ and k₂.
        experts: routed experts of the layer.
        groups: how many groups they are in and how many of those a token may choose from; None:
            the router has no groups.
        renormalises: whether the router divides the weights by their sum.
        biased: whether a bias takes part in the choice. Without one, experts of other groups count
            as nothing.

    Raises:
        UnsupportedModelError: the layer has too few experts, or its groups leave k₂ no meaning.
    """
    k1, k2 = block.k1, block.k2
    assert k1 is not None and k2 is not None, "the block leaves routing as it is"
    within = experts
    if groups is not None and groups[0] > groups[1] > 0:
        within = experts // groups[0] * groups[1]
    if k1 > within:
        raise UnsupportedModelError(
            f"config.json: moeprune.k1 is {k1}, and a token chooses from {within} experts. Export "
            "the model again."
        )
    if within < k2 < experts:
        raise UnsupportedModelError(
            f"config.json: moeprune.k2 is {k2}, but the router's groups hold {within} of {experts} "
            f"experts and rank no others. Export with --k2 {within} or --k2 {experts}."
        )
    if k2 >= experts:
        all_of_them = experts if biased else within
        return k1, (all_of_them if renormalises else None)
    return k1, k2


@contextmanager
def stating(configs: Sequence[object], count: int, *, widest: int) -> Iterator[None]:
    """Within the block, configs state ``count`` wherever they state ``widest`` experts.

    Every loader of a family builds a layer from the one count that the config states.
    """
    found: list[tuple[Any, str]] = []
    for config in {id(config): config for config in configs}.values():
        for key in COUNT_KEYS:
            if getattr(config, key, None) == widest:
                found.append((config, key))
    try:
        for config, key in found:
            setattr(config, key, count)
        yield
    finally:
        for config, key in found:
            setattr(config, key, widest)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0
