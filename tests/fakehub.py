"""A Hub of one repository over HTTP on 127.0.0.1: what the real client needs, and nothing more.

It stores what arrives, so a test can compare it byte for byte, and it can be told to fail.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import unquote, urlsplit

SHA = "a" * 40


class Hub:
    """State of the server: files of the one repository, requests seen, and what should fail.

    Attributes:
        files: path -> bytes, after every commit.
        objects: sha256 -> bytes, from LFS uploads.
        requests: (method, path), in order of arrival.
        fail: (method, pattern of the path) -> status, or 0 to drop the connection.
        fail_headers: headers of a failing answer.
        fail_body: body of a failing answer.
        large: patterns of files that go through LFS.
        swallow: a file that the server loses.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.created: list[dict] = []
        self.commits: list[dict] = []
        self.branches: set[str] = {"main"}
        self.tokens: set[str | None] = set()  # sent to the API, not to the storage
        self.fail: dict[tuple[str, str], int] = {}
        self.fail_headers: dict[str, str] = {}
        self.fail_body = b"{}"
        self.large: tuple[str, ...] = ("*.safetensors",)
        self.swallow: str | None = None
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that has seen enough
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, body: object) -> None:
        self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self._body()
        hub = self.hub
        hub.requests.append((self.command, path))
        if self.command != "PUT":
            hub.tokens.add(self.headers.get("Authorization"))
        for (method, pattern), status in hub.fail.items():
            if method in (self.command, "*") and fnmatch.fnmatchcase(path, pattern):
                if status == 0:
                    self.close_connection = True
                    self.connection.close()
                    return
                self._answer(status, hub.fail_body, hub.fail_headers)
                return
        if self.command == "POST":
            self._post(path, body)
        elif self.command == "PUT":
            hub.objects[path.rpartition("/")[2]] = body
            self._answer(200)
        else:
            self._get(path)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _post(self, path: str, body: bytes) -> None:
        hub = self.hub
        if path == "/api/repos/create":
            wanted = json.loads(body)
            hub.created.append(wanted)
            full = f"{wanted['organization'] or 'someone'}/{wanted['name']}"
            self._json({"url": f"{hub.url}/{full}", "id": full})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/branch/" in path:
            name = path.partition("/branch/")[2]
            status = 409 if name in hub.branches else 201
            hub.branches.add(name)
            self._answer(status, b"{}")
        elif "/preupload/" in path:
            self._json(
                {
                    "files": [
                        {
                            "path": file["path"],
                            "uploadMode": "lfs" if self._large(file["path"]) else "regular",
                            "shouldIgnore": False,
                        }
                        for file in json.loads(body)["files"]
                    ]
                }
            )
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._json(
                {
                    "transfer": "basic",
                    "objects": [
                        {
                            "oid": item["oid"],
                            "size": item["size"],
                            "actions": {"upload": {"href": f"{hub.url}/lfs/{item['oid']}"}},
                        }
                        for item in json.loads(body)["objects"]
                    ],
                }
            )
        elif "/commit/" in path:
            self._commit(path, body)
        else:
            self._answer(404)

    def _large(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.hub.large)

    def _commit(self, path: str, body: bytes) -> None:
        hub = self.hub
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                hub.commits.append(value)
            elif entry["key"] == "file":
                hub.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                hub.files[value["path"]] = hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del hub.files[value["path"]]
        if hub.swallow:
            hub.files.pop(hub.swallow, None)
        repo = path.removeprefix("/api/models/").partition("/commit/")[0]
        url = f"{hub.url}/{repo}/commit/{SHA}"
        self._json({"success": True, "commitOid": SHA, "commitUrl": url})

    def _get(self, path: str) -> None:
        hub = self.hub
        if "/resolve/" in path:
            name = path.partition("/resolve/")[2].partition("/")[2]
            if name not in hub.files:
                self._answer(404, headers={"X-Error-Code": "EntryNotFound"})
                return
            data = hub.files[name]
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": SHA}
            self._answer(200, data, {**headers, "Content-Length": str(len(data))})
        elif "/tree/" in path:
            self._json(
                [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": hashlib.sha1(data).hexdigest(),
                    }
                    for name, data in sorted(hub.files.items())
                ]
            )
        elif path.startswith("/api/models/"):
            revision = path.partition("/revision/")[2]
            if revision and revision not in (*hub.branches, SHA):
                self._answer(404, headers={"X-Error-Code": "RevisionNotFound"})
                return
            siblings = [{"rfilename": name} for name in sorted(hub.files)]
            self._json({"id": "org/name", "sha": SHA, "siblings": siblings})
        else:
            self._answer(404)


State = TypeVar("State", bound=Hub)


@contextlib.contextmanager
def running(hub: State, handler: type[Handler]) -> Iterator[State]:
    """Run a hub on a free port of 127.0.0.1 until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.hub = hub  # type: ignore[attr-defined]
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve() -> contextlib.AbstractContextManager[Hub]:
    """Run a hub that takes what is pushed."""
    return running(Hub(), Handler)
