"""The grid of a scan: what is always in it, what limits it, and what a family's default is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.policy import ABLATIONS, RoutingPolicy
from moeprune.core.scan_grid import (
    ABLATION,
    CONTROL,
    FOLDED,
    GAIN,
    GRID,
    NATIVE,
    Axes,
    Point,
    folded,
    grid,
)
from moeprune.core.scan_verdict import family_verdict
from moeprune.errors import UsageError


def axes(k: int = 8, experts: int = 256, *, renormalises: bool = True, **more: Any) -> Axes:
    native = RoutingPolicy(k1=k, k2=k if renormalises else experts)
    return Axes(
        native=native,
        renormalises=renormalises,
        experts=experts,
        **{"reach": experts, **more},
    )


def pairs(points: tuple[Point, ...]) -> list[tuple[int, int]]:
    return [(point.k1, point.k2) for point in points]


def test_of_the_paper() -> None:
    points = grid(axes(k1=[4, 6], k2=[10, "E"]))
    assert pairs(points) == [
        (8, 8),
        *((4, k2) for k2 in (4, 5, 8, 10, 16, 256)),
        *((6, k2) for k2 in (6, 7, 8, 10, 16, 256)),
    ]
    assert [point.kind for point in points[:4]] == [NATIVE, CONTROL, GRID, GRID]
    assert points[0].policy is None and points[1].policy == RoutingPolicy(k1=4, k2=4)
    assert [point.name for point in points if point.default] == ["k1-4_k2-4", "k1-6_k2-6"]
    assert pairs(grid(axes()))[1:] == [(4, 4), (4, 5), (4, 8), (4, 16)]


def test_a_router_that_does_not_renormalise_reduces_to_all() -> None:
    points = grid(axes(4, 16, renormalises=False))
    assert pairs(points) == [(4, 16), (2, 2), (2, 3), (2, 4), (2, 8), (2, 16)]
    assert [point.k2 for point in points if point.default] == [16]
    assert points[1].kind == CONTROL


def test_the_native_pair_is_there_once() -> None:
    assert pairs(grid(axes(4, 16, k1=[4]))) == [(4, 4), (4, 5), (4, 8)]
    assert pairs(grid(axes(4, 16, renormalises=False, k1=[4]))) == [(4, 16), (4, 4), (4, 5), (4, 8)]
    # All experts natively: whatever lies beyond is that.
    assert pairs(grid(axes(4, 4, k1=[4], k2=[3]))) == [(4, 4), (4, 3)]


def test_small_numbers() -> None:
    assert pairs(grid(axes(1, 8))) == [(1, 1), (1, 2)]
    assert pairs(grid(axes(1, 1))) == [(1, 1)]
    assert pairs(grid(axes(3, 8, least=2)))[:2] == [(3, 3), (2, 2)]  # LongCat runs two at least
    assert pairs(grid(axes(4, 6))) == [(4, 4), (2, 2), (2, 3), (2, 4), (2, 6)]  # 2k > E
    assert pairs(grid(axes(6, 6))) == [(6, 6), (3, 3), (3, 4), (3, 6)]


def test_groups_limit_what_has_a_rank() -> None:
    # 3 groups of 4, of which a token takes 2: 8 ranks, or all.
    found = pairs(grid(axes(3, 12, reach=8, k1=[2], k2=[9, 11, 12, "E"])))
    assert found == [(3, 3), (2, 2), (2, 3), (2, 6), (2, 8), (2, 12)]


def test_gains_and_ablations() -> None:
    points = grid(axes(4, 16, gains=[0.5, 2], ablations=True))
    extra = [point for point in points if point.kind in (GAIN, ABLATION)]
    assert [point.policy for point in extra] == [
        RoutingPolicy(k1=2, k2=2, gain=0.5),
        RoutingPolicy(k1=2, k2=2, gain=2),
        *(RoutingPolicy(k1=4, k2=4, ablation=ablation) for ablation in ABLATIONS),
    ]
    assert not any(point.compared for point in extra)
    assert len({point.name for point in points}) == len(points)


def test_what_a_fold_stands_for() -> None:
    point = next(point for point in grid(axes(4, 16)) if (point.k1, point.k2) == (2, 4))
    policy = RoutingPolicy(k1=2, k2=2, gain=(0.5, 0.6))
    found = folded(point, policy)
    assert found.policy == policy and found.kind == FOLDED
    assert (found.k1, found.k2, found.name) == (2, 4, "k1-2_k2-4_folded")
    assert not found.compared


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"k1": [17]}, "--k1 17 is more than the 16 experts"),
        ({"k1": [0]}, "--k1 cannot be 0"),
        ({"k1": ["2"]}, "--k1 cannot be '2': give a whole number from 1"),
        ({"gains": ["0.5"]}, "--gain cannot be '0.5': give a number above 0"),
        ({"k2": [0]}, "--k2 cannot be 0"),
        ({"k2": ["all"]}, "--k2 cannot be 'all': give a whole number from 1, or E"),
    ],
)
def test_what_cannot_be_scanned(said: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        grid(axes(4, 16, **said))


@given(data=st.data())
def test_every_grid(data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, experts))
    reach = data.draw(st.integers(k, experts))
    k1 = data.draw(st.lists(st.integers(1, reach), max_size=4))
    k2 = data.draw(st.lists(st.one_of(st.integers(1, 60), st.just("E")), max_size=4))
    renormalises = data.draw(st.booleans())
    spanned = axes(k, experts, renormalises=renormalises, reach=reach, k1=k1, k2=k2)
    points = grid(spanned)
    native, *rest = points
    assert native.policy is None and [point.kind for point in points].count(NATIVE) == 1
    assert len({point.name.casefold() for point in points}) == len(points)
    assert len(set(pairs(points))) == len(points)
    for each in set(k1) or {max(1, k // 2)}:
        own = [point.k2 for point in rest if point.k1 == each]
        if (each, each) != (native.k1, native.k2):
            assert own[0] == each, "the control is first"
        tried = own if each != native.k1 else [*own, native.k2]
        assert own[1:] == sorted(own[1:]) or own == sorted(own)
        wanted = {each, each + 1, k, 2 * k, *(experts if n == "E" else n for n in k2)}
        for number in wanted:
            limit = experts if number >= experts else min(number, reach)
            assert limit in tried or number in tried
        assert all(1 <= number <= experts for number in tried)
        assert all(n <= reach or n in (experts, each) for n in tried)
        defaults = [point for point in rest if point.k1 == each and point.default]
        assert len(defaults) <= 1
        assert all(point.k2 == (each if renormalises else experts) for point in defaults)


def test_what_is_expected_of_a_family() -> None:
    def expected(model_type: str, gating: str, renormalises: bool) -> str:
        return family_verdict(model_type, gating, renormalises=renormalises).expected

    assert expected("qwen3_moe", "softmax", True) == "works"
    assert expected("gpt_oss", "softmax", True) == "works"
    assert expected("gemma4_text", "softmax", True) == "half"
    assert expected("diffusion_gemma", "softmax", True) == "half"
    assert expected("olmoe", "softmax", False) == "open"
    assert expected("glm4_moe", "sigmoid", True) == "fails"
    assert expected("deepseek_v4", "sqrtsoftplus", True) == "fails"
    text = family_verdict("deepseek_v4", "sqrtsoftplus", renormalises=True).said("deepseek_v4")
    assert text.startswith(
        "a k2 above k1 is expected not to work for deepseek_v4: its sqrt-softplus gate"
    )
