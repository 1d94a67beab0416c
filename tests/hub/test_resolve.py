"""Names of models: local folders, and snapshots through the real client from a local server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fakehub import serve
from hubclient import call_client

from moeprune.errors import CheckpointError, UsageError
from moeprune.hub.resolve import is_hub_id, resolve_model, source_name

WANTED = {
    "config.json": b"{}",
    "model-00001-of-00001.safetensors": bytes(range(256)) * 40,
    "model.safetensors.index.json": b"{}",
    "tokenizer.model": b"\x00\x01",
    "chat_template.jinja": b"{{ x }}",
    "merges.txt": b"a b",
    "modeling_x.py": b"raise SystemExit('a downloaded file was run')",
    "README.md": b"# x",
    "LICENSE": b"free",
    "sub/deep.json": b"[]",
}
UNWANTED = {"pytorch_model.bin": b"no", "model.gguf": b"no", "figures/a.png": b"no"}


def test_a_local_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")  # spelled like a Hub id, but here
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/org") == tmp_path / "org"


def test_a_revision_of_a_local_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"main.*local folder"):
        resolve_model(tmp_path, revision="main")


@pytest.mark.parametrize(
    "name", ["nothing", "a/b/c", "./org/name", "/no/such", "org/", "org/näme", "x--y/z", "", "a\0b"]
)
def test_what_is_neither_is_named(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve_model(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_never_becomes_a_hub_id() -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        resolve_model(Path("org/name"))


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"is an empty file, not a model\. Name a folder"):
        resolve_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("Qwen/Qwen3-30B-A3B", True),
        ("a/b", True),
        ("a_b/c.d", True),
        ("a/b.git", False),
        ("a/.b", True),
        ("a/b-", False),
        ("-a/b", False),
        ("a", False),
        ("a/b\n", False),
        ("a/" + "b" * 95, False),
    ],
)
def test_spelling_of_hub_ids(name: str, good: bool) -> None:
    assert is_hub_id(name) is good


def test_source_names_hold_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    assert source_name(folder) == source_name(f"{folder}/.") == "my model"
    assert source_name("Qwen/Qwen3-30B-A3B") == "Qwen/Qwen3-30B-A3B"
    snapshot = tmp_path / "models--Qwen--Q_3-x" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    assert source_name(snapshot) == "Qwen/Q_3-x"


def test_a_snapshot_is_downloaded_once_and_serves_offline(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serve() as hub:
        hub.files = {**WANTED, **UNWANTED}
        (first,), _ = call_client(hub.url, [("resolve", ["org/name"], {})], home=home)
        folder = Path(first["result"])
        got = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert got == WANTED
        hub.requests.clear()
        (again,), _ = call_client(
            hub.url, [("resolve", ["org/name"], {"revision": "main"})], home=home
        )
        assert again == first
        assert not [path for _, path in hub.requests if "/resolve/" in path]
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):  # the server is gone
        (offline,), _ = call_client(
            hub.url, [("resolve", ["org/name"], {})], home=home, **environment
        )
        assert offline == first


# Answer of the server, and what the one line must say.
FAILURES: list[tuple[int, dict[str, str], list[str]]] = [
    (401, {"X-Error-Code": "RepoNotFound"}, ["no model org/name", "hf auth login"]),
    (404, {"X-Error-Code": "RepoNotFound"}, ["no model org/name", "Check the name"]),
    (403, {"X-Error-Code": "GatedRepo"}, ["org/name is gated", "terms"]),
    (403, {}, ["org/name", "403"]),
    (500, {}, ["org/name", "500", "later"]),
    (0, {}, ["org/name", "cannot be reached", "no such folder here"]),
]


@pytest.mark.parametrize("pattern", ["/api/*", "*/resolve/*/*.safetensors"])
def test_refusals_are_one_line(tmp_path: Path, pattern: str) -> None:
    # The client repeats a file that failed for half a minute: there, only what it does not repeat.
    once = [failure for failure in FAILURES if pattern == "/api/*" or 400 <= failure[0] < 500]
    for number, (status, headers, words) in enumerate(once):
        with serve() as hub:
            hub.files = dict(WANTED)
            hub.fail = {("*", pattern): status}
            hub.fail_headers = headers
            (outcome,), _ = call_client(
                hub.url, [("resolve", ["org/name"], {})], home=tmp_path / f"{number}"
            )
        assert outcome.get("error") == "HubError", (status, outcome)
        assert "\n" not in outcome["text"] and outcome["links"] == 1
        for word in words:
            assert word in outcome["text"], (status, outcome["text"])


def test_bad_revision_no_server_and_offline(tmp_path: Path) -> None:
    call = ("resolve", ["org/name"], {"revision": "nope"})
    with serve() as hub:
        (outcome,), _ = call_client(hub.url, [call], home=tmp_path)
    assert outcome["error"] == "HubError"
    assert "org/name has no revision 'nope'" in outcome["text"]
    (nobody,), _ = call_client("http://127.0.0.1:9", [call], home=tmp_path)
    assert nobody["error"] == "HubError" and "cannot be reached" in nobody["text"]
    (offline,), _ = call_client("http://127.0.0.1:9", [call], home=tmp_path, HF_HUB_OFFLINE="1")
    assert offline["error"] == "HubError" and "HF_HUB_OFFLINE" in offline["text"]


def test_a_local_folder_costs_no_client(tmp_path: Path) -> None:
    code = (
        "import sys; from moeprune.hub.resolve import resolve_model; "
        f"resolve_model({str(tmp_path)!r}); "
        "assert not {'huggingface_hub', 'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
