"""What went wrong with the Hub, in one line for a person, and never with a token in it.

The client's own errors run over several lines and may quote what a server sent back, so their text
is used only where nothing better is known, one line of it, with the token cut out. Callers raise
outside the ``except`` block: a chained error would carry the client's text along.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator

LOGIN = "Log in with 'hf auth login' or set HF_TOKEN."
_TOKEN_LIKE = re.compile(r"hf_[A-Za-z0-9_-]{3,}|(?<=Bearer )[^\s'\"]+")
_LONGEST = 200
_CACHE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


def client_errors() -> tuple[type[Exception], ...]:
    """The exceptions that a call of ``huggingface_hub`` may end in; imports the client.

    ``OSError`` covers lost connections and a full disk, ``ValueError`` ids, arguments and answers
    that the client refuses, ``KeyError`` an answer that lacks what it looks for, ``RuntimeError``
    the transfer library below it.
    """
    from huggingface_hub.errors import XetDownloadError

    return (*_transport_errors(), XetDownloadError, OSError, ValueError, KeyError, RuntimeError)


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the HTTP library below the client raises, whichever library that is (it has changed)."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(
        kind
        for kind in HfHubHTTPError.__mro__
        if kind.__name__ == "HTTPError" and issubclass(kind, Exception)
    )


@contextlib.contextmanager
def bars_on_terminals_only() -> Iterator[None]:
    """Keep the client's progress bars out of logs; what the user set in the environment wins."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    chosen = "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ
    if chosen or sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def explain(
    error: BaseException,
    *,
    repo_id: str,
    revision: str | None = None,
    file: str | None = None,
    writing: bool = False,
    token: str | None = None,
) -> str:
    """One line: what happened to ``repo_id`` and what to do.

    Args:
        error: what the client raised.
        repo_id: the repository that was asked for.
        revision: the revision that was asked for.
        file: the one file of it that was asked for.
        writing: True for an upload; the advice differs.
        token: the token that was used; it is cut from any text taken from elsewhere, as is the one
            of ``hf auth login`` or ``HF_TOKEN``.
    """
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"{repo_id} is gated: accept its terms on its page on the Hub, then log in with "
            "'hf auth login' or set HF_TOKEN."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{repo_id} has no revision {revision!r}. Name a branch, tag or commit of the "
            "repository, or leave --revision out."
        )
    # The client calls whatever it could not fetch a local entry that it did not find.
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    ):
        return (
            f"{repo_id} lists {file or 'a file'}, but the Hub does not find it"
            f"{'' if file else _said(error, token)}. Try again later."
        )
    status = _status(error)
    if status is None and type(error).__name__ == "XetAuthenticationError":
        status = 403  # the transfer library's word for it
    if isinstance(error, errors.LocalTokenNotFoundError):
        status = 401
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return _missing(repo_id, status, writing=writing)
    if status == 403:
        return f"the Hub refuses {'to write' if writing else 'access'} to {repo_id} (403). " + (
            "Use a token with write access to it, or a name of your own."
            if writing
            else "Ask its owners for access, or use a token that has it."
        )
    if status == 409:
        return f"{repo_id} changed or exists in another form (409). Push again, or to another name."
    if status is not None:
        return f"the Hub answered {status} for {repo_id}{_said(error, token)}. " + (
            "Try again later." if status >= 500 or status == 429 else "Correct this and repeat."
        )
    return _without_status(error, repo_id, token, writing=writing)


def is_passing(error: BaseException) -> bool:
    """True where the same request may succeed a moment later: a lost connection, a busy server."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return False
    status = _status(error)
    if status is not None:
        return status in (408, 429) or status >= 500
    if type(error).__name__ == "TooManyRedirects":  # by name: the library below has changed
        return False
    return isinstance(error, (*_transport_errors(), ConnectionError, TimeoutError))


def is_answer(error: BaseException) -> bool:
    """True where the Hub was reached, and answered with this."""
    return _status(error) is not None


def _status(error: BaseException) -> int | None:
    """HTTP status of the error, or of the one it was made from."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if response is not None and isinstance(response.status_code, int):
            return int(response.status_code)
        seen = seen.__cause__
    return None


def _missing(repo_id: str, status: int | None, *, writing: bool) -> str:
    if writing and status == 404:
        return (
            f"the Hub finds no place for {repo_id} (404). Push to your own user name or to an "
            "organisation you belong to."
        )
    if writing:
        return f"the Hub does not know who pushes to {repo_id} (401). {LOGIN}"
    return (
        f"the Hub has no model {repo_id} that you can see, and there is no such folder here. "
        f"Check the name. Is it private? {LOGIN}"
    )


def _without_status(error: BaseException, repo_id: str, token: str | None, *, writing: bool) -> str:
    from huggingface_hub import errors

    causes: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in causes:
        causes.append(seen)
        seen = seen.__cause__
    if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes):
        return (
            f"{repo_id} needs the Hub, but HF_HUB_OFFLINE is set and the files are not all in the "
            "cache. Unset it, or name a local folder."
        )
    if isinstance(error, OSError) and error.errno in _CACHE_ERRORS:
        # Only the system's words: the client's text may name other things.
        return (
            f"{repo_id} cannot go through the Hub cache: {error.strerror}. Free space or give "
            "permission there, or move it with HF_HOME."
        )
    if isinstance(error, UnicodeEncodeError):  # of an HTTP header; its text would show the token
        return (
            "the token of the Hub (HF_TOKEN, or that of 'hf auth login') holds a letter that no "
            "token has. Copy it again."
        )
    if isinstance(error, errors.HFValidationError):
        return f"{repo_id!r} is not a Hub id. Write it as ORG/NAME."
    kind = type(error).__name__
    if any(
        isinstance(cause, (*_transport_errors(), ConnectionError, TimeoutError)) for cause in causes
    ):
        # A local path of two parts that does not exist looks like a Hub id.
        folder = "" if writing else ", and there is no such folder here"
        return (
            f"the Hub cannot be reached for {repo_id}{folder} ({kind}{_said(error, token)}). "
            "Check the name, the network, HF_ENDPOINT and proxies, and try again."
        )
    return (
        f"the Hub's client gave up on {repo_id} ({kind}{_said(error, token)}). Check HF_ENDPOINT, "
        "or bring huggingface_hub up to date."
    )


def _own_token() -> str | None:
    """The token that the client sends where none is given; it need not look like one."""
    from huggingface_hub import get_token

    return get_token()


def _said(error: BaseException, token: str | None) -> str:
    """``": text"`` of the server or the client, one line of it without tokens; or nothing."""
    text = getattr(error, "server_message", None) or (
        "" if _status(error) is not None else str(error)
    )
    first = " ".join(str(text).split())
    for secret in filter(None, (token, _own_token())):
        first = first.replace(secret, "***")
    first = _TOKEN_LIKE.sub("***", first).rstrip(". ")
    if len(first) > _LONGEST:
        first = f"{first[:_LONGEST].rstrip()} …"
    return f": {first}" if first else ""
