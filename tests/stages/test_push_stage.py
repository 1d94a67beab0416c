"""Push through the real huggingface_hub client to a local server, and every way it can fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakehub import Hub, serve
from hubclient import call_client
from safetensors.numpy import save_file

from moeprune.errors import CheckpointError, UsageError
from moeprune.stages.push import push

TOKEN = "hf_ThisIsASecretThatNobodyMaySee0123456789"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        yield running


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder as export leaves it, with two shards, a sub-folder, and what must not travel."""
    folder = tmp_path / "out"
    folder.mkdir()
    rng = np.random.default_rng(0)
    weight_map = {}
    for number in (1, 2):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({f"w{number}": rng.random((40, 50), dtype=np.float32)}, folder / file)
        weight_map[f"w{number}"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text('{"model_type": "qwen3_moe"}')
    (folder / "moeprune.json").write_text('{"schema": "moeprune.export/1"}')
    (folder / "README.md").write_text("# Größe\n", encoding="utf-8")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "lines.txt").write_bytes(b"\r\n\x00\xff")
    (folder / "sub").mkdir()
    (folder / "sub" / "é ü.json").write_text("{}")
    for unwanted in (".cache/huggingface/x.lock", "sub/.cache/y", ".git/config", ".gitignore"):
        (folder / unwanted).parent.mkdir(parents=True, exist_ok=True)
        (folder / unwanted).write_text("*.safetensors")
    return folder


def expected(folder: Path) -> dict[str, bytes]:
    hidden = (".cache", ".git", ".gitignore")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part in hidden for part in path.relative_to(folder).parts)
    }


def test_every_byte_arrives(hub: Hub, out: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (outcome,), printed = call_client(
        hub.url,
        [("push", [str(out), "org/name"], {"private": True, "token": TOKEN})],
        home=tmp_path / "home",
    )
    want = expected(out)
    assert len(want) == 9
    assert outcome.get("result", outcome) == f"{hub.url}/org/name"
    assert hub.files == want
    assert hub.created == [{"name": "name", "organization": "org", "visibility": "private"}]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    total = sum(len(data) for data in want.values())
    assert outcome["progress"] == [[0, total], [total, total]]
    assert TOKEN not in printed
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_streaming_client_sends_the_same(hub: Hub, out: Path, tmp_path: Path) -> None:
    hub.large = ()  # all in the commit itself, so that no storage service is asked
    (outcome,), printed = call_client(
        hub.url,
        [("push", [str(out), "org/name"], {"token": TOKEN})],
        home=tmp_path / "home",
        HF_HUB_DISABLE_XET="0",
    )
    assert outcome.get("result", outcome) == f"{hub.url}/org/name"
    assert hub.files == expected(out)
    assert TOKEN not in printed


def test_stale_weights_of_an_earlier_push_leave_and_other_files_stay(
    hub: Hub, out: Path, tmp_path: Path
) -> None:
    hub.files = {
        "model.safetensors": b"old",
        "model-00003-of-00003.safetensors": b"old",
        "config.json": b"old",
        "notes.md": b"mine",
        "adapter/model-card.txt": b"mine",
    }
    (outcome,), _ = call_client(
        hub.url, [("push", [str(out), "org/name"], {"token": TOKEN})], home=tmp_path / "home"
    )
    assert "result" in outcome
    assert hub.files == {
        "notes.md": b"mine",
        "adapter/model-card.txt": b"mine",
        **expected(out),
    }
    assert len(hub.commits) == 1  # old weights are never gone without the new ones being there


def test_branch_message_and_a_name_without_organisation(
    hub: Hub, out: Path, tmp_path: Path
) -> None:
    options = {"revision": "half", "commit_message": "Half of them", "token": TOKEN}
    outcomes, _ = call_client(
        hub.url,
        [("push", [str(out), "name"], options), ("push", [str(out), "name"], options)],
        home=tmp_path / "home",
    )
    for outcome in outcomes:
        assert outcome.get("result", outcome) == f"{hub.url}/someone/name/tree/half"
    assert "half" in hub.branches
    assert all("/commit/half" in path for _, path in hub.requests if "/commit/" in path)
    assert hub.commits[0]["summary"] == "Half of them"


# (failing request, status or 0 = dropped connection, headers, what the one line must say)
FAILURES = [
    ("*", "/api/*", 401, {}, ["org/name", "401", "hf auth login"]),
    ("*", "/api/*", 403, {}, ["org/name", "403", "write access"]),
    ("*", "/api/*", 404, {}, ["org/name", "404", "organisation"]),
    ("POST", "/api/repos/create", 500, {}, ["org/name", "500", "later"]),
    ("POST", "/api/repos/create", 429, {}, ["org/name", "429", "later"]),
    ("POST", "/api/repos/create", 0, {}, ["org/name", "cannot be reached", "HF_ENDPOINT"]),
    ("POST", "*/preupload/*", 401, {}, ["org/name", "401", "hf auth login"]),
    ("POST", "*/preupload/*", 403, {}, ["org/name", "403", "write access"]),
    ("POST", "*/commit/*", 400, {}, ["org/name", "400", "bad front matter"]),
    ("POST", "*/commit/*", 403, {}, ["org/name", "403", "write access"]),
    ("POST", "*/commit/*", 409, {}, ["org/name", "409"]),
    ("POST", "*/commit/*", 500, {}, ["org/name", "500", "later"]),
    ("POST", "*/commit/*", 0, {}, ["org/name", "cannot be reached"]),
    ("POST", "*/objects/batch", 500, {}, ["org/name", "500"]),
    ("PUT", "/lfs/*", 403, {}, ["org/name", "403"]),
]


@pytest.mark.parametrize("stored", [False, True], ids=["given", "environment"])
def test_failures_are_one_line_and_never_show_the_token(
    out: Path, tmp_path: Path, stored: bool
) -> None:
    """All failures in one process: one import of the client, and a failure leaves no state."""
    for method, pattern, status, headers, words in FAILURES if not stored else FAILURES[:9]:
        with serve() as hub:
            hub.fail = {(method, pattern): status}
            # A careless server repeats the secret in its answer.
            hub.fail_body = json.dumps({"error": f"bad front matter Bearer {TOKEN} x"}).encode()
            hub.fail_headers = {"Content-Type": "application/json", **headers}
            options = {} if stored else {"token": TOKEN}
            environment = {"HF_TOKEN": TOKEN} if stored else {}
            (outcome,), printed = call_client(
                hub.url,
                [("push", [str(out), "org/name"], options)],
                home=tmp_path / "home",
                **environment,
            )
            assert outcome["error"] == "HubError", (pattern, status, outcome)
            text = outcome["text"]
            assert "\n" not in text
            for word in words:
                assert word in text, (pattern, status, text)
            assert f"Bearer {TOKEN}" in hub.tokens
            assert TOKEN not in outcome["everything"] + printed
            assert outcome["links"] == 1
            assert not hub.commits
