"""The fake Hub with datasets: the same repository under their addresses, and parts of files."""

from __future__ import annotations

import contextlib
import hashlib
import re
from urllib.parse import unquote, urlsplit

from fakehub import SHA, Handler, Hub, running


class DatasetHandler(Handler):
    """Answers what ``datasets`` asks of a Hub while it streams."""

    def _entries(self) -> list[dict]:
        return [
            {
                "type": "file",
                "path": name,
                "size": len(data),
                "oid": hashlib.sha1(data).hexdigest(),
            }
            for name, data in sorted(self.hub.files.items())
        ]

    def _listing(self, folder: str) -> list[dict]:
        """What stands directly in a folder."""
        prefix = f"{folder}/" if folder else ""
        inside = [entry for entry in self._entries() if entry["path"].startswith(prefix)]
        files = [entry for entry in inside if "/" not in entry["path"][len(prefix) :]]
        folders = {
            prefix + entry["path"][len(prefix) :].partition("/")[0]
            for entry in inside
            if entry not in files
        }
        return files + [{"type": "directory", "path": at, "oid": SHA} for at in sorted(folders)]

    def _get(self, path: str) -> None:
        name = unquote(urlsplit(path).path)
        if name.startswith(("/api/datasets/", "/datasets/")) and not re.search(
            "/org/(name|scripted)(/|$)", name
        ):
            self._answer(404, headers={"X-Error-Code": "RepoNotFound"})
            return
        if "/tree/" in name:
            folder = name.partition("/tree/")[2].partition("/")[2]
            self._json(self._listing(folder))
            return
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        file = path.partition("/resolve/")[2].partition("/")[2]
        if part and file in self.hub.files:
            data = self.hub.files[file]
            first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
            headers = {
                "Content-Range": f"bytes {first}-{last}/{len(data)}",
                "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
                "X-Repo-Commit": SHA,
            }
            self._answer(206, data[first : last + 1], headers)
            return
        super()._get(path.replace("/api/datasets/", "/api/models/"))


def serve_datasets() -> contextlib.AbstractContextManager[Hub]:
    """Run a hub of one dataset, ``org/name``, which is also known as ``org/scripted``."""
    return running(Hub(), DatasetHandler)
