"""Artefacts: JSON that says one thing, and files that are complete or absent."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.artefact import canonical_json, parse_json, read_json, write_bytes
from moeprune.errors import OutputError, PlanError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
SURROGATE = "\udcff"


@given(VALUES)
def test_canonical_json_reads_back(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


def test_what_utf8_cannot_hold_is_escaped() -> None:
    """A file name that is not UTF-8 must not make an artefact that cannot be written."""
    value = {"name": f"mod{SURROGATE}", "plain": "ü \\udcff"}
    text = canonical_json(value)
    assert text.encode("utf-8").decode("utf-8") == text
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"keep": [0], "keep": [1]}', "'keep' occurs twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' occurs twice"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ("1" * 5000, "digits"),
    ],
    ids=["key", "inner-key", "lists", "objects", "number"],
)
def test_json_that_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        parse_json(text)
    (tmp_path / "file").write_text(text)
    with pytest.raises(PlanError, match=says) as caught:
        read_json(tmp_path / "file", error=PlanError, what="a plan")
    assert str(tmp_path / "file") in str(caught.value) and "\n" not in str(caught.value)


def test_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Notepad writes one."""
    (tmp_path / "file").write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xbc"}\r\n')
    assert read_json(tmp_path / "file", error=PlanError, what="a plan") == {"a": "ü"}


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "nul\0", "file/inside"])
def test_paths_that_cannot_be(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    with pytest.raises(PlanError):
        read_json(tmp_path / name, error=PlanError, what="a plan")


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    """The temporary name must not be longer than the file's."""
    longest = tmp_path / ("n" * 255)
    write_bytes(longest, b"data")
    assert longest.read_bytes() == b"data"
    with pytest.raises(OutputError, match="too long"):
        write_bytes(tmp_path / ("n" * 256), b"data")
    assert [path.name for path in tmp_path.iterdir()] == [longest.name]


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    """A rename onto /dev/null would put a file there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for special in (pipe, Path("/dev/null")):
        with pytest.raises(OutputError, match="device or a pipe"):
            write_bytes(special, b"data")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and Path("/dev/null").is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    real, link = tmp_path / "deep" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_bytes(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["real"]
