"""A routing policy on a live model: the one entrance for all stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from moeprune.core.layout import MoeLayout
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_checks import check_policy

if TYPE_CHECKING:
    from moeprune.routing.policy import Hits
    from moeprune.routing.selfcheck import SelfCheck

Keep = Sequence[Sequence[int]]


@contextmanager
def policy_applied(
    live: Any, layout: MoeLayout, policy: RoutingPolicy, keep: Keep | None = None
) -> Iterator[Hits]:
    """Within the block, the routers of a live model follow ``policy``.

    Args:
        live: the loaded model.
        layout: of it.
        policy: what its routers are to do.
        keep: (L,) ids of the experts that are not masked, where a plan is applied around this (see
            :func:`moeprune.routing.mask.masked_experts`); None: all.

    Yields:
        How often each router ran.

    Raises:
        UsageError: the policy does not fit the model.
        UnsupportedModelError: no policy fits this family.
        VerificationError: a router does not do what it is asked for, or never ran.
    """
    check_policy(policy, layout, keep)
    from moeprune.observe.layers import moe_layers
    from moeprune.routing.policy import rerouted

    layers = moe_layers(live, layout)
    gains = policy.gains * (1 if len(policy.gains) > 1 else len(layout.layer_ids))
    with rerouted(
        live,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        kept=[layer.num_experts if keep is None else len(keep[layer.row]) for layer in layers],
        gains=[gains[layer.row] for layer in layers],
        renormalises=layout.renormalises,
        policy=policy,
        num_idle=layout.idle_experts,
    ) as hits:
        yield hits


@contextmanager
def changed(
    live: Any, layout: MoeLayout, plan: PrunePlan | None, policy: RoutingPolicy | None
) -> Iterator[None]:
    """Within the block, a live model is what ``plan`` leaves of it, and follows ``policy``.

    Args:
        live: the loaded model.
        layout: of it.
        plan: its removed experts are masked; None: all stay.
        policy: what its routers are to do; None: their own.

    Raises:
        UsageError: the policy does not fit the model.
        UnsupportedModelError: no policy fits this family.
        VerificationError: a router ran that was not masked, or does not do what it is asked for.
    """
    with ExitStack() as stack:
        if plan is not None:
            from moeprune.observe.layers import moe_layers
            from moeprune.routing.mask import masked_experts

            layers = moe_layers(live, layout)
            masked = masked_experts(
                live,
                routers=[layer.router for layer in layers],
                num_experts=[layer.num_experts for layer in layers],
                removed=[plan.removed[layer.row] for layer in layers],
                extra=layout.extra_rows,
            )
            stack.enter_context(masked)
        if policy is not None:  # around the mask: what it reroutes is the masked router
            keep = None if plan is None else plan.keep
            stack.enter_context(policy_applied(live, layout, policy, keep))
        yield


def self_check(
    live: Any, layout: MoeLayout, ids: Sequence[int], keep: Keep | None = None
) -> SelfCheck:
    """Check that policies really act on a live model, before anything is measured with one.

    Args:
        live: the loaded model.
        layout: of it.
        ids: tokens of one text, 2 at least.
        keep: as in :func:`policy_applied`.

    Raises:
        VerificationError: a check failed; the message says what was not reached.
        UnsupportedModelError: no policy fits this family.
    """
    native = layout.native_policy
    check_policy(native, layout, keep)
    from moeprune.observe.layers import moe_layers
    from moeprune.observe.placed import input_device
    from moeprune.routing.selfcheck import check_routing

    names = {id(module): name for name, module in live.named_modules()}
    passes = layout.passes or (1,) * len(layout.layer_ids)
    due = {names[id(layer.router)]: passes[layer.row] for layer in moe_layers(live, layout)}
    return check_routing(
        live,
        ids,
        native=native,
        most=min(layout.num_experts if keep is None else map(len, keep)),
        least=layout.least_top_k,
        due=due,
        device=input_device(live),
        applied=lambda policy: policy_applied(live, layout, policy, keep),
    )
