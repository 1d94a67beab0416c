"""A routing policy on a live model: k₁ experts a token, weighed by the mass of the top k₂.

Every router is asked itself, by the rule that an export carries too (``rule``), so there is one
arithmetic. What is wrapped is a method of each router's instance: it works on a model that
accelerate has dispatched, under ``generate``, with every experts implementation, and around routers
whose experts a plan has masked.

T tokens, K experts chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UsageError, VerificationError
from moeprune.routing.ablations import Ablation
from moeprune.routing.choosers import Chooser, chooser_of, replaced
from moeprune.routing.rule import keeps_order, own_scale, reroute


@dataclass(frozen=True, slots=True)
class Hits:
    """How often routers ran.

    Attributes:
        calls: name of each router that follows the policy -> its calls.
        native: name of each that looks its choice up, and so stays as it is -> its calls.
    """

    calls: dict[str, int] = field(default_factory=dict)
    native: dict[str, int] = field(default_factory=dict)


@contextmanager
def rerouted(
    model: nn.Module,
    *,
    routers: Sequence[nn.Module],
    num_experts: Sequence[int],
    kept: Sequence[int],
    gains: Sequence[float],
    renormalises: bool,
    policy: RoutingPolicy,
    num_idle: int = 0,
) -> Iterator[Hits]:
    """Within the block, the routers of ``model`` follow ``policy``.

    Args:
        model: a loaded model; its modules are restored at the end.
        routers: the router module of each MoE layer in each stack, modules of ``model``.
        num_experts: routed experts of each.
        kept: of each, those that are not masked.
        gains: of each, the factor of its weights.
        renormalises: whether the routers divide the weights by their sum.
        policy: what they are to do; checked against the model.
        num_idle: further choices of every router, that a token may take in place of an expert.

    Yields:
        The calls so far.

    Raises:
        UnsupportedModelError: a router has no number of experts that can be set.
        UsageError: the routers follow a policy already.
        VerificationError: a router returned another number of experts than it was asked for; or,
            at the end of the block, some ran and another never did.
    """
    names = {id(module): name for name, module in model.named_modules()}
    hits = Hits()
    with ExitStack() as stack:
        for place, router in enumerate(routers):
            name = names[id(router)]
            if name in hits.calls or name in hits.native:  # of two stacks
                continue
            chooser = chooser_of(model, router, name=name)
            _check_native(chooser)
            if chooser.knob is None:
                wrapped = _counted(chooser, hits.native)
            else:
                count = num_experts[place]
                everything = policy.k2 >= kept[place]
                choose = _rule(
                    chooser,
                    policy,
                    k2=(count if renormalises else None) if everything else policy.k2,
                    renormalises=renormalises,
                    ablation=Ablation.of(policy, router, layer=place, num_choices=count + num_idle),
                    gain=gains[place],
                )
                wrapped = _counted(chooser, hits.calls, choose)
            stack.enter_context(replaced(chooser, wrapped))
        yield hits
        calls = hits.calls | hits.native
        silent = [name for name, count in calls.items() if not count]
        if silent and any(calls.values()):
            raise VerificationError(
                f"the policy never reached {_some(silent)}, while {len(calls) - len(silent)} other "
                "routers ran; nothing computed with it can be trusted."
            )


def _check_native(chooser: Chooser) -> None:
    """Refuse a router that answers with a k of its own: what comes back may look as asked for."""
    live = hasattr(getattr(chooser.owner, chooser.method), "follows_policy")
    if live or hasattr(chooser.owner, "moeprune_k2"):  # or as an export's code has it
        raise UsageError(
            f"{chooser.name} follows a policy already, which another one cannot look behind. Leave "
            "that one first, or load the model that the export was made from."
        )


Run = Callable[[int], tuple[Any, ...]]


def _counted(
    chooser: Chooser, calls: dict[str, int], choose: Callable[[Run], Any] | None = None
) -> Callable[..., Any]:
    """The chooser's method, counted; with ``choose`` it decides in its place."""
    own = getattr(chooser.owner, chooser.method)
    calls[chooser.name] = 0

    def method(*args: Any, **kwargs: Any) -> Any:
        calls[chooser.name] += 1
        if choose is None:
            return own(*args, **kwargs)
        return chooser.answer(choose(lambda k: chooser.ask(lambda: own(*args, **kwargs), k)))

    method.follows_policy = True  # type: ignore[attr-defined]
    return method


def _rule(
    chooser: Chooser,
    policy: RoutingPolicy,
    *,
    k2: int | None,
    renormalises: bool,
    ablation: Ablation | None,
    gain: float,
) -> Callable[[Run], tuple[Any, ...]]:
    in_order = keeps_order(type(chooser.owner), chooser.method)
    scale = 1.0 if renormalises else own_scale(chooser.owner)

    def choose(run: Run) -> tuple[Any, ...]:
        logits, weights, ids, *rest = reroute(
            run, k1=policy.k1, k2=k2, renormalises=renormalises, in_order=in_order, scale=scale
        )
        if ablation is not None:
            weights, ids = ablation.apply(run, weights, ids)
        if gain != 1.0:
            weights = (weights.float() * gain).to(weights.dtype)
        return (logits, weights, ids, *rest)

    return choose


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
