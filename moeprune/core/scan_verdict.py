"""Whether a family's gate is one whose loss a wider denominator gives back.

"Halving the Activated Experts of a MoE Without Training", section 7: the gating function decides,
not the size of the model or the number of its experts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

WORKS, HALF, FAILS, OPEN = "works", "half", "fails", "open"

_REASONS = {
    WORKS: "its softmax gate divides by the top k, an amplification that grows when k is lowered "
    "and that a larger k2 takes back",
    HALF: "its gate renormalises a softmax and scales experts by learned factors; on Gemma-4 half "
    "of the loss came back",
    FAILS: "its {gating} gate has no amplification of its own to take back: the weights were "
    "trained at their scale, and on GLM-4.7 and DeepSeek-V4 no k2 gave the loss back",
    OPEN: "its softmax gate does not renormalise: lowering k leaves the weight of every expert "
    "that still runs as it was trained, so there is no amplification to take back",
}
_EXPECTED = {
    WORKS: "expected to work",
    HALF: "expected to work half",
    FAILS: "expected not to work",
    OPEN: "not expected to matter",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyVerdict:
    """What is expected of a larger k₂, before anything is measured.

    Attributes:
        expected: ``works``, ``half``, ``fails``, or ``open``: nothing to correct, and not measured.
        reason: the words for it.
    """

    expected: str
    reason: str

    def said(self, family: str) -> str:
        """The sentence: ``a k2 above k1 is expected to work for qwen3_moe: its softmax gate …``."""
        return f"a k2 above k1 is {_EXPECTED[self.expected]} for {family}: {self.reason}."

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


def family_verdict(model_type: str, gating: str, *, renormalises: bool) -> FamilyVerdict:
    """The verdict on a family.

    Args:
        model_type: of the config that states the experts.
        gating: ``"softmax"``, ``"sigmoid"`` or ``"sqrtsoftplus"``.
        renormalises: whether the router divides the weights by their sum.
    """
    if gating != "softmax":
        expected = FAILS
    elif not renormalises:
        expected = OPEN
    else:
        expected = HALF if "gemma" in model_type else WORKS
    said = {"sqrtsoftplus": "sqrt-softplus"}.get(gating, gating)
    return FamilyVerdict(expected=expected, reason=_REASONS[expected].format(gating=said))
