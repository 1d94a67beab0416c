"""Which stored tensors belong together: a quantised weight, and what its numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.layout import TensorInfo
from moeprune.quant._format import StoredFormat
from moeprune.quant._values import owner_of, values_of


def stored_maps(
    stored: StoredFormat | None, tensors: Mapping[str, TensorInfo]
) -> dict[str, dict[str, str]]:
    """Every quantised weight with all that stands beside it.

    Args:
        stored: the format; None: of an unquantised checkpoint, which has none.
        tensors: all tensors.

    Returns:
        What the names of a weight's tensors begin with (``….up_proj``, or ``….gate_up_proj`` of
        stacks of all experts) -> what follows it (``weight``, ``weight_scale``, ``blocks`` …) ->
        stored name. The weight of a stack that has its name alone is ``weight``.
    """
    if stored is None:
        return {}
    values = values_of(stored, tensors)
    owners = {owner_of(name): name for name, count in values.items() if count}
    found: dict[str, dict[str, str]] = {owner: {} for owner in owners}
    for name in values:
        owner = _owner(name, owners)
        if owner is not None:
            found[owner][name[len(owner) + 1 :] or "weight"] = name
    return found


def _owner(name: str, owners: Mapping[str, str]) -> str | None:
    """The longest of ``owners`` that ``name`` begins with, up to a dot or a line below."""
    if name in owners:
        return name
    for end in range(len(name) - 1, 0, -1):
        if name[end] in "._" and name[:end] in owners:
            return name[:end]
    return None
