"""One commit of a model on the Hub, file by file: what it states, byte ranges, single downloads.

The commit is looked up once and everything is asked of it, so what is read belongs together
whatever is pushed meanwhile. A file that lies in the Hub's cache is taken from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from moeprune.errors import HubError
from moeprune.hub.asking import LONG_WAITS, WAITS, Result, asked
from moeprune.hub.resolve import PATTERNS

_WEIGHTS = "*.safetensors"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


@dataclass(frozen=True, slots=True)
class FileState:
    """What the Hub states of a file at one commit.

    Attributes:
        size: in bytes.
        etag: another one means other content.
    """

    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model at one commit.

    Attributes:
        repo_id: ``org/name``.
        revision: as it was asked for.
        commit: what that is.
        files: paths of its files, with ``/``, sorted.
    """

    repo_id: str
    revision: str | None
    commit: str
    files: tuple[str, ...]

    @classmethod
    def find(cls, repo_id: str, *, revision: str | None = None) -> RemoteModel:
        """Look up the commit and its files.

        Raises:
            HubError: the Hub refused, has no such model or revision, or could not be reached.
        """
        from huggingface_hub import HfApi, constants

        if constants.HF_HUB_OFFLINE:
            raise HubError(
                f"{repo_id} cannot be looked up while HF_HUB_OFFLINE is set. Unset it; or, if the "
                "whole model is in the Hub's cache, leave --stream out."
            )
        info = asked(
            lambda: HfApi().model_info(repo_id, revision=revision),
            repo_id,
            revision=revision,
            waits=WAITS,
            answered=True,  # where nobody answers, the cache may serve: no time is lost
        )
        names = sorted(file.rfilename for file in info.siblings or ())
        for name in names:
            parts = PurePosixPath(name).parts
            if ".." in parts or "\\" in name or "\0" in name or name.startswith("/"):
                raise HubError(f"{repo_id} lists a file {name!r}, which would lie outside of it.")
        if not info.sha:
            raise HubError(f"the Hub states no commit of {repo_id}. Check HF_ENDPOINT.")
        return cls(repo_id, revision, info.sha, tuple(names))

    @property
    def weights(self) -> tuple[str, ...]:
        """Paths of its safetensors files."""
        return tuple(name for name in self.files if fnmatchcase(name, _WEIGHTS))

    def download_others(self, folder: Path) -> None:
        """Put every file that a model consists of, except its weights, into ``folder``.

        Raises:
            HubError: the Hub refused, or could not be reached.
        """
        from huggingface_hub import snapshot_download

        self._ask(
            lambda: snapshot_download(
                self.repo_id,
                revision=self.commit,
                local_dir=folder,
                allow_patterns=list(PATTERNS),
                ignore_patterns=[_WEIGHTS],
            ),
            waits=(),  # the client repeats it itself
        )

    def cached(self, file: str) -> Path | None:
        """Where the file lies whole in the Hub's cache, or None."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo_id, file, revision=self.commit)
        return Path(found) if isinstance(found, str) else None

    def state(self, file: str) -> FileState:
        """Ask for size and etag of a file.

        Raises:
            HubError: the Hub refused, could not be reached, or does not say.
        """
        from huggingface_hub import get_hf_file_metadata

        found = self._ask(lambda: get_hf_file_metadata(self._url(file)), file)
        if found.commit_hash not in (self.commit, None):
            raise self.changed(file)
        if found.size is None or found.size < 0 or not found.etag:
            raise HubError(
                f"the Hub does not state the size of {file} of {self.repo_id}. Check HF_ENDPOINT, "
                "or download the model and name its folder."
            )
        return FileState(found.size, found.etag)

    def read(self, file: str, start: int, end: int, *, size: int) -> bytes:
        """The bytes [start, end) of a file of ``size`` bytes; never more than that is read.

        Raises:
            HubError: the Hub refused, could not be reached, or sends something else.
        """
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, not listed
            build_hf_headers,
            hf_raise_for_status,
        )

        headers = build_hf_headers() | {
            "Range": f"bytes={start}-{end - 1}",
            "Accept-Encoding": "identity",
        }

        def once() -> bytes:
            data = bytearray()
            with get_session().stream(
                "GET", self._url(file), headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
            ) as answer:
                if answer.status_code >= 400:
                    answer.read()  # what went wrong is told in the body
                hf_raise_for_status(answer)
                if answer.status_code != 206 and start > 0:
                    raise HubError(
                        f"the Hub sends {file} of {self.repo_id} whole where a part was asked for. "
                        "Check HF_ENDPOINT, or download the model and name its folder."
                    )
                stated = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                coding = answer.headers.get("Content-Encoding", "identity")
                if coding != "identity" or (answer.status_code == 206 and not stated):
                    raise HubError(
                        f"something answers in the Hub's place: what comes for {file} of "
                        f"{self.repo_id} is not its bytes. Check HF_ENDPOINT and proxies."
                    )
                if stated and (int(stated[1]), int(stated[2])) != (start, size):
                    raise self.changed(file)
                for piece in answer.iter_raw():
                    data += piece[: end - start - len(data)]
                    if len(data) == end - start:
                        return bytes(data)
            raise ConnectionError(f"{file} ended after {len(data)} of {end - start} bytes")

        return self._ask(once, file)

    def download(self, file: str, folder: Path) -> Path:
        """Download a file whole to its name in ``folder``, which holds nothing of that name.

        Raises:
            HubError: the Hub refused, could not be reached, or sent another size than it stated.
            OSError: the disk is full.
        """
        from huggingface_hub import hf_hub_download

        return Path(
            self._ask(
                lambda: hf_hub_download(self.repo_id, file, revision=self.commit, local_dir=folder),
                file,
                # The client repeats a lost connection, but not a busy server. What has come stays.
                waits=LONG_WAITS,
            )
        )

    def changed(self, file: str) -> HubError:
        """The error of a file that is not what it was."""
        return HubError(
            f"{file} of {self.repo_id} changed on the Hub while it was read. Run this again."
        )

    def _url(self, file: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.repo_id, file, revision=self.commit)

    def _ask(
        self,
        call: Callable[[], Result],
        file: str | None = None,
        *,
        waits: tuple[int, ...] = WAITS,
    ) -> Result:
        return asked(call, self.repo_id, revision=self.revision, file=file, waits=waits)
