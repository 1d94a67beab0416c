"""What a token costs, in words."""

import pytest

from moeprune.cli.cost_text import cost_text, count, token_text
from moeprune.core.cost import Activated, Cost

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
        "parameters that a token activates: 2.946 B -> 2.443 B (-17.1%; of routed experts 1.007 B "
        "-> 503.316 M, -50.0%, of all experts -44.4%)",
        "weights that decoding a token alone reads: 5.89 GB -> 4.89 GB (-17.1%)",
    ]


def test_nothing_is_said_of_no_change() -> None:
    assert cost_text(Cost(activated=NATIVE, native=NATIVE)) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999_999, "999,999"), (10**6, "1.000 M"), (10**12, "1.000 T")],
)
def test_units(number: int, text: str) -> None:
    assert count(number) == text
