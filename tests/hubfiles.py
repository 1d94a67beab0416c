"""A Hub that hands out the files of one repository: byte ranges, a storage host, and accidents.

As on the Hub, weights come from another host, to which a signed address leads and which must not
see the token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fakehub import SHA, Handler, Hub, running


class FileHub(Hub):
    """State of the server.

    Attributes:
        sent: name -> bytes of its content that were sent.
        whole: weight files that were asked for without a range, in order.
        ranges: (name, first, last) of every range that was asked for.
        revisions: that files were asked of.
        storage_tokens: what the storage host saw of tokens.
        cuts: name -> after how many bytes the connection drops, at the next requests.
        during: called with the name, again and again while a file is sent.
        stated: name -> the size that is stated, where it is not the real one.
        etags: name -> the etag that is stated, where it is not the real one.
        no_ranges: the server sends whole files only.
        changed: headers and body of a part -> those that are sent in their place.
        moved: a part of a path, and what requests for it are redirected to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()
        self.whole: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []
        self.revisions: set[str] = set()
        self.storage_tokens: set[str | None] = set()
        self.cuts: dict[str, list[int]] = {}
        self.during: Callable[[str], None] = lambda _: None
        self.stated: dict[str, int] = {}
        self.etags: dict[str, str] = {}
        self.no_ranges = False
        self.changed: Callable[[dict[str, str], bytes], tuple[dict[str, str], bytes]] | None = None
        self.moved: tuple[str, str] | None = None


class _FileHandler(Handler):
    @property
    def hub(self) -> FileHub:
        return self.server.hub  # type: ignore[attr-defined]

    def _get(self, path: str) -> None:
        moved = self.hub.moved
        if moved and moved[0] in path:
            self._answer(307, b"", {"Location": self.path.replace(*moved)})
            return
        if path.startswith("/storage/"):
            self.hub.storage_tokens.add(self.headers.get("Authorization"))
            self._send(path.removeprefix("/storage/"))
            return
        hub = self.hub
        if "/resolve/" not in path:
            super()._get(path)
            return
        revision, _, name = path.partition("/resolve/")[2].partition("/")
        hub.revisions.add(revision)
        if name not in hub.files:
            self._answer(404, headers={"X-Error-Code": "EntryNotFound"})
        elif self._large(name):
            data = hub.files[name]
            host = hub.url.replace("127.0.0.1", "localhost")
            headers = {
                "Location": f"{host}/storage/{quote(name)}?signature=x",
                "X-Linked-Etag": f'"{hub.etags.get(name) or hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(hub.stated.get(name, len(data))),
                "X-Repo-Commit": SHA,
            }
            self._answer(302, b"", headers)
        else:
            self._send(name)

    def _send(self, name: str) -> None:
        hub, data = self.hub, self.hub.files[name]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": SHA}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end, status = 0, len(data), 200
        if asked and self.command == "GET" and not hub.no_ranges:
            start = int(asked[1])
            end = min(end, int(asked[2]) + 1) if asked[2] else end
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        if asked and asked[2]:
            hub.ranges.append((name, int(asked[1]), int(asked[2])))
        elif self.command == "GET" and self._large(name):
            hub.whole.append(name)
        body = data[start:end]
        if status == 206 and hub.changed:
            headers, body = hub.changed(headers, body)
        waiting = hub.cuts.get(name) if self.command == "GET" else None
        part = body[: waiting.pop(0)] if waiting else body
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for at in range(0, len(part), 1 << 16):
            hub.during(name)
            try:
                self.wfile.write(part[at : at + (1 << 16)])
            except OSError:  # the client has seen enough
                self.close_connection = True
                return
            hub.sent[name] += len(part[at : at + (1 << 16)])
        if len(part) < len(body):
            self.close_connection = True
            self.connection.close()


def experts_by_three(folder: Path) -> None:
    """Cut the weights of a checkpoint anew: what is no expert, then three experts of a layer."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    groups: dict[tuple[int, int], dict[str, Any]] = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        key = (int(parts[2]), int(parts[5]) // 3) if "experts" in parts else (-1, 0)
        groups.setdefault(key, {})[name] = tensor
    weight_map = {}
    for number, key in enumerate(sorted(groups), start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(groups[key], folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(groups[key], file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@contextlib.contextmanager
def hub_of(folder: Path) -> Iterator[FileHub]:
    """A Hub whose repository ``org/name`` holds the files of ``folder``."""
    hub = FileHub()
    hub.files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    with running(hub, _FileHandler):
        yield hub
