"""What a token costs, in words."""

from dataclasses import replace

import pytest

from moeprune.cli.cost_text import cost_text, token_text
from moeprune.core.cost import Activated, Cost
from moeprune.core.sizes import count

NATIVE = Activated(
    routed=1_006_632_960,
    shared=125_911_040,
    other=1_813_887_616,
    routed_bytes=2_013_265_920,
    bytes_per_token=5_892_863_232,
)
HALF = Activated(
    routed=503_316_480,
    shared=125_911_040,
    other=1_813_887_616,
    routed_bytes=1_006_632_960,
    bytes_per_token=4_886_230_272,
)


def test_numbers_of_the_paper_as_words() -> None:
    assert token_text(NATIVE) == (
        "a token activates 2.946 B parameters (1.007 B in routed experts, 125.911 M in shared "
        "ones); decoding it alone reads 5.89 GB"
    )
    assert cost_text(Cost(activated=HALF, native=NATIVE)) == [
        "a token activates 2.946 B -> 2.443 B parameters (-17.1%; routed experts -50.0%, all "
        "experts -44.4%)",
        "decoding one token alone reads 5.89 GB -> 4.89 GB",
    ]


def test_pruning_alone_saves_no_compute() -> None:
    fewer_rows = replace(NATIVE, other=NATIVE.other - 1000, bytes_per_token=5_892_861_232)
    assert cost_text(Cost(activated=fewer_rows, native=NATIVE)) == [
        "a token activates 2.946 B parameters, in as many experts as before: fewer to choose from "
        "save memory, not compute"
    ]


def test_smaller_numbers_are_read_faster() -> None:
    smaller = replace(NATIVE, routed_bytes=1_006_632_960, bytes_per_token=4_886_230_272)
    read = "decoding one token alone reads 5.89 GB -> 4.89 GB"
    assert cost_text(Cost(activated=smaller, native=NATIVE)) == [read]
    both = replace(smaller, other=NATIVE.other - 1000)
    pruned, last = cost_text(Cost(activated=both, native=NATIVE))
    assert pruned.endswith("save memory, not compute") and last == read


def test_nothing_is_said_of_no_change() -> None:
    assert cost_text(Cost(activated=NATIVE, native=NATIVE)) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999_999, "999,999"), (10**6, "1.000 M"), (10**12, "1.000 T")],
)
def test_units(number: int, text: str) -> None:
    assert count(number) == text
