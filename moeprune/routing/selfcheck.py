"""Does a policy act at all? Asked of every model before anything is measured with one.

A patch that is not reached changes nothing, and then every point of a scan equals the native model
("Halving the Activated Experts of a MoE Without Training", section 9, lesson 9). So: the native
pair must give the native logits bit by bit, each router must be reached as often as it runs, and
another k₁ must change the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moeprune.core.policy import RoutingPolicy
from moeprune.errors import VerificationError
from moeprune.routing.policy import Hits


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """What the check saw.

    Attributes:
        routers: that follow a policy.
        fixed: routers that look their choice up, and stay native.
        calls: of all routers in one forward pass.
        loss: of the native model on the text, nats a token.
        other: the policy that was compared with it.
        other_loss: its loss.
    """

    routers: int
    fixed: int
    calls: int
    loss: float
    other: RoutingPolicy
    other_loss: float

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "routers": self.routers,
            "fixed_routers": self.fixed,
            "calls": self.calls,
            "native_loss": self.loss,
            "compared": self.other.to_json(),
            "compared_loss": self.other_loss,
        }


def check_routing(
    model: Any,
    ids: Sequence[int],
    *,
    native: RoutingPolicy,
    most: int,
    least: int = 1,
    due: Mapping[str, int],
    applied: Callable[[RoutingPolicy], AbstractContextManager[Hits]],
    device: Any = None,
) -> SelfCheck:
    """Check that policies act on ``model``.

    Args:
        model: a causal language model.
        ids: tokens of one text, 2 at least.
        native: what the model does by itself.
        most: experts that a token can run.
        least: the fewest that it can run.
        due: name of each router -> its calls in a forward pass.
        applied: puts a policy on the model.
        device: that its inputs belong on; None: the CPU.

    Raises:
        VerificationError: a check failed; the message says what was not reached.
    """
    plain = _logits(model, ids, device)
    with applied(native) as hits:
        under = _logits(model, ids, device)
    _check_hits(hits, due)
    noise = 0.0
    if not torch.equal(plain, under):
        # A device that adds in any order gives other bits each time, without a policy too.
        noise = _largest(plain, _logits(model, ids, device))
        if _largest(plain, under) > noise:
            raise VerificationError(
                f"the native policy ({native.label}) moves logits by {_largest(plain, under):.3g}; "
                "policies are not right for this model, and nothing is measured with them."
            )
    # One expert fewer, or one more where one alone runs.
    k1 = native.k1 - 1 if native.k1 > least else min(native.k1 + 1, most)
    other = replace(native, k1=k1, k2=max(native.k2, k1))
    with applied(other) as hits:
        changed = _logits(model, ids, device)
    _check_hits(hits, due)
    loss, other_loss = _loss(plain, ids), _loss(changed, ids)
    if other.k1 != native.k1 and (_largest(plain, changed) <= noise or loss == other_loss):
        raise VerificationError(
            f"{other.label} gives the same loss as the native {native.label}: the policy does "
            "not act on this model, and nothing is measured with it."
        )
    return SelfCheck(
        routers=len(hits.calls),
        fixed=len(hits.native),
        calls=sum(due.values()),
        loss=loss,
        other=other,
        other_loss=other_loss,
    )


def _check_hits(hits: Hits, due: Mapping[str, int]) -> None:
    calls = hits.calls | hits.native
    wrong = [
        f"{name} {calls.get(name, 0)} of {count}"
        for name, count in due.items()
        if calls.get(name, 0) != count
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise VerificationError(
            f"the policy was not reached in every layer of a forward pass (calls: "
            f"{', '.join(wrong[:3])}{more}); nothing is measured with it."
        )


@torch.no_grad()
def _logits(model: Any, ids: Sequence[int], device: Any) -> Tensor:
    """(T, V) float32; what the model draws by itself is the same each time."""
    tokens = torch.tensor([list(ids)], device=device)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits[0].float().cpu()


def _largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _loss(logits_TV: Tensor, ids: Sequence[int]) -> float:
    due = torch.tensor(list(ids)[1 : len(logits_TV) + 1])
    return float(torch.nn.functional.cross_entropy(logits_TV[: len(due)], due))
