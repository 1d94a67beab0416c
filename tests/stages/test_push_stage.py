"""Push through the real huggingface_hub client to a local server, and every way it can fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakehub import Hub, serve
from hubclient import call_client
from huggingface_hub import ModelCard
from safetensors.numpy import save_file

from moeprune.core.plan import PrunePlan
from moeprune.errors import CheckpointError, UsageError
from moeprune.stages.export import export
from moeprune.stages.identify import open_model
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
    assert len(printed.splitlines()) == 1  # the outcome: no bars where there is no terminal
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_an_export_comes_back_from_the_hub(
    hub: Hub, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    source = shutil.copytree(tiny("qwen3_moe"), tmp_path / "source")
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    facts = open_model(source).facts
    plan = PrunePlan(
        model_name=facts.name,
        model_fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        top_k=facts.top_k,
        layer_ids=facts.layer_ids,
        num_experts=facts.num_experts,
        keep=tuple(tuple(range(0, count, 2)) for count in facts.num_experts),
    )
    folder = export(source, plan=plan, output=tmp_path / "pruned")
    (pushed, back), _ = call_client(
        hub.url,
        [("push", [str(folder), "org/name"], {}), ("resolve", ["org/name"], {})],
        home=tmp_path / "home",
    )
    assert "result" in pushed, pushed
    snapshot = Path(back["result"])
    assert expected(snapshot) == expected(folder)
    card = ModelCard(snapshot.joinpath("README.md").read_text(encoding="utf-8"))
    assert card.data.to_dict()["license"] == "mit"
    assert str(tmp_path) not in card.content


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


# Failing request, status or 0 = dropped connection, what the one line must say.
Failure = tuple[str, str, int, list[str]]
FAILURES: list[Failure] = [
    ("*", "/api/*", 401, ["org/name", "401", "hf auth login"]),
    ("*", "/api/*", 403, ["org/name", "403", "write access"]),
    ("*", "/api/*", 404, ["org/name", "404", "organisation"]),
    ("POST", "/api/repos/create", 500, ["org/name", "500", "later"]),
    ("POST", "/api/repos/create", 429, ["org/name", "429", "later"]),
    ("POST", "/api/repos/create", 0, ["org/name", "cannot be reached", "HF_ENDPOINT"]),
    ("POST", "*/preupload/*", 401, ["org/name", "401", "hf auth login"]),
    ("POST", "*/preupload/*", 403, ["org/name", "403", "write access"]),
    ("POST", "*/commit/*", 400, ["org/name", "400", "bad front matter"]),
    ("POST", "*/commit/*", 403, ["org/name", "403", "write access"]),
    ("POST", "*/commit/*", 409, ["org/name", "409"]),
    ("POST", "*/commit/*", 500, ["org/name", "500", "later"]),
    ("POST", "*/commit/*", 0, ["org/name", "cannot be reached"]),
    ("POST", "*/objects/batch", 403, ["org/name", "403"]),
    ("PUT", "/lfs/*", 403, ["org/name", "403"]),
]


def fail_once(out: Path, home: Path, failure: Failure, token: bool) -> dict[str, Any]:
    method, pattern, status, _ = failure
    with serve() as hub:
        hub.fail = {(method, pattern): status}
        # A careless server repeats the secret in its answer.
        hub.fail_body = json.dumps({"error": f"bad front matter Bearer {TOKEN} x"}).encode()
        hub.fail_headers = {"Content-Type": "application/json"}
        (outcome,), printed = call_client(
            hub.url,
            [("push", [str(out), "org/name"], {"token": TOKEN} if token else {})],
            home=home,
            **({} if token else {"HF_TOKEN": TOKEN}),
        )
        assert f"Bearer {TOKEN}" in hub.tokens
        assert not hub.commits
    return {**outcome, "printed": printed}


def check_failure(outcome: dict[str, Any], failure: Failure) -> None:
    assert outcome.get("error") == "HubError", (failure, outcome)
    assert "\n" not in outcome["text"]
    for word in failure[3]:
        assert word in outcome["text"], (failure, outcome["text"])
    assert TOKEN not in outcome["everything"] + outcome["printed"]
    assert outcome["links"] == 1  # no chained error that would carry the client's text


def test_failures_are_one_line_and_never_show_the_token(out: Path, tmp_path: Path) -> None:
    # Several at a time: the client waits between its own retries.
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(fail_once, out, tmp_path / "home", f, True) for f in FAILURES]
        for failure, job in zip(FAILURES, jobs, strict=True):
            check_failure(job.result(), failure)


def test_a_token_of_the_environment_stays_hidden_too(out: Path, tmp_path: Path) -> None:
    failure = ("POST", "*/commit/*", 400, ["org/name", "400", "bad front matter"])
    check_failure(fail_once(out, tmp_path / "home", failure, False), failure)


def test_a_file_that_the_hub_loses_is_an_error(hub: Hub, out: Path, tmp_path: Path) -> None:
    hub.swallow = "config.json"
    (outcome,), _ = call_client(
        hub.url, [("push", [str(out), "org/name"], {"token": TOKEN})], home=tmp_path / "home"
    )
    assert outcome["error"] == "HubError"
    assert "lacks 1 of 9 files" in outcome["text"] and "config.json" in outcome["text"]


def test_nobody_listens_and_offline(out: Path, tmp_path: Path) -> None:
    call = ("push", [str(out), "org/name"], {"token": TOKEN})
    (nobody,), _ = call_client("http://127.0.0.1:9", [call], home=tmp_path / "home")
    check_failure({**nobody, "printed": ""}, ("", "", 0, ["org/name", "cannot be reached"]))
    (offline,), _ = call_client(
        "http://127.0.0.1:9", [call], home=tmp_path / "home", HF_HUB_OFFLINE="1"
    )
    check_failure({**offline, "printed": ""}, ("", "", 0, ["org/name", "HF_HUB_OFFLINE"]))


@pytest.mark.parametrize(
    "repo_id", ["", "a/b/c", "org/", "/name", "org/na me", "org/näme", "a--b", "x.git", "a" * 97]
)
def test_a_malformed_id_is_refused_before_anything_is_sent(out: Path, repo_id: str) -> None:
    with pytest.raises(UsageError, match="is not a repository id") as caught:
        push(out, repo_id)
    assert repr(repo_id) in str(caught.value)


@pytest.mark.parametrize("token", ["", "hf_secret part", "hf_secret\n", "hf_secrét"])
def test_a_token_that_cannot_be_sent_is_refused_unseen(out: Path, token: str) -> None:
    with pytest.raises(UsageError, match="token") as caught:
        push(out, "org/name", token=token)
    assert "hf_" not in str(caught.value)


@pytest.mark.parametrize("revision", ["", "a b", "a..b", "x~1"])
def test_a_malformed_branch_is_refused(out: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="cannot name a branch"):
        push(out, "org/name", revision=revision)


def test_only_a_complete_export_is_pushed(out: Path, tmp_path: Path) -> None:
    shard = out / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="model-00002"):
        push(out, "org/name")
    shard.unlink()
    with pytest.raises(CheckpointError, match="model-00002"):
        push(out, "org/name")
    shard.write_bytes(whole)
    (out / "moeprune.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"moeprune\.json"):
        push(out, "org/name")
    (out / "moeprune.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"folder of a model without moeprune\.json.*Name an exported"
    ):
        push(out, "org/name")
    with pytest.raises(CheckpointError, match="does not exist"):
        push(tmp_path / "nothing", "org/name")
