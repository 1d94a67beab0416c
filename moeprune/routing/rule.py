"""k₁ experts of a router, weighed by the mass of its top k₂, by the router's own code.

Nothing of a router is derived again: it runs with another k, once or twice, and its own choice and
weights are put together. Bias, groups, scales and shared experts are right by construction.
This module needs torch alone and no other module of the package: exported checkpoints carry its
text.

T tokens, K experts chosen.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any


def reroute(
    run: Callable[[int], tuple[Any, ...]],
    *,
    k1: int,
    k2: int | None,
    renormalises: bool,
    in_order: bool,
    scale: float = 1.0,
) -> tuple[Any, ...]:
    """What a router returns that runs k₁ experts with weights p[:k₁] / Σ p[:k₂].

    Args:
        run: k -> what the router itself returns with k experts: a tuple of logits, (T, K) weights,
            (T, K) ids, and more.
        k1: experts that run.
        k2: ranks in the denominator; None: all, which a router that does not renormalise means.
        renormalises: whether the router divides the weights by their sum.
        in_order: whether it returns the experts in the order of its choice.
        scale: factor of its weights, of a router that does not renormalise.
    """
    if not renormalises:
        logits, weights, ids, *rest = run(k1)
        if k2 is not None:
            total = run(k2)[1].float().sum(-1, keepdim=True)
            weights = (weights.float() * (scale / total)).to(weights.dtype)
        return (logits, weights, ids, *rest)
    assert k2 is not None, "such a router has a denominator"
    if k2 < k1:
        logits, weights, ids, *_ = run(k1)
        # What else it returns (weights of shared experts) goes by the same denominator.
        _, others, other_ids, *rest = run(k2)
        ratio = _ratio(weights, ids, others, other_ids)
        weights = (weights.float() * ratio).to(weights.dtype)
        return (logits, weights, ids, *rest)
    logits, weights, ids, *rest = run(k2)
    if k1 < k2 and in_order:
        weights, ids = weights[..., :k1].contiguous(), ids[..., :k1].contiguous()
    elif k1 < k2:
        weights_k1, chosen = run(k1)[1:3]
        same = chosen.unsqueeze(-1) == ids.unsqueeze(-2)
        found = weights.gather(-1, same.int().argmax(-1))
        # Of equal scores each run may take others: those are in the run of k₁ alone.
        scaled = weights_k1.float() * _ratio(weights_k1, chosen, weights, ids)
        weights, ids = found.where(same.any(-1), scaled.to(weights.dtype)), chosen
    return (logits, weights, ids, *rest)


def _ratio(weights: Any, ids: Any, others: Any, other_ids: Any) -> Any:
    """By what a run's weights differ from those of another k: its denominator over the other's.

    The experts that both chose show it. Where there is none, all that either could choose had equal
    scores, and so has each run's best.
    """
    same = ids.unsqueeze(-1) == other_ids.unsqueeze(-2)
    ours = (weights.float() * same.any(-1)).sum(-1, keepdim=True)
    theirs = (others.float() * same.any(-2)).sum(-1, keepdim=True)
    best = others.float().amax(-1, keepdim=True) / weights.float().amax(-1, keepdim=True)
    return (theirs / ours).where(same.any(-1).any(-1, keepdim=True), best)


def keeps_order(router_class: Any, method: str = "forward") -> bool:
    """Whether a router surely returns the experts in the order of its choice.

    Where its own ``method`` does not call ``topk`` in the open, or tells it not to sort, nothing
    is sure: :func:`reroute` then asks it twice, which gives the same.
    """
    try:
        source = inspect.getsource(getattr(router_class, method))
    except (OSError, TypeError):
        return False
    return len(re.findall(r"\btopk\(", source)) == 1 and "sorted" not in source


def own_scale(router: Any) -> float:
    """The factor that a router applies to its weights itself, whatever its k; 1 where it has none.

    Its ``forward`` says so by name; a block may have the same attribute and apply it to a sum.

    Raises:
        OSError: the router's source is not there to be read.
    """
    source = inspect.getsource(type(router).forward)
    for name in ("routed_scaling_factor", "route_scale"):
        if f"self.{name}" in source:
            return float(getattr(router, name))
    return 1.0
