from __future__ import annotations

import pytest

from moeprune.core.sizes import parse_bytes
from moeprune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5_000_000_000),
        ("5 gb", 5_000_000_000),
        ("1.5MB", 1_500_000),
        ("4GiB", 4 << 30),
        ("700", 700),
        (700, 700),
        ("2kB", 2000),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text, option="--shard-size") == size


@pytest.mark.parametrize("text", ["", "GB", "5G", "-1GB", "0", "0.1", "1e9", "five", "5 GB x", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--shard-size .* is not a size such as 5GB"):
        parse_bytes(text, option="--shard-size")
