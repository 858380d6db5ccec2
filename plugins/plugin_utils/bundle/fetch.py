# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch files, and resume interrupted downloads.

A file is moved to its final path after its SHA-256 was verified.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import time
import urllib.error
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.urls import open_url

from ...module_utils.durable import replacing
from ..host_values import text
from .model import BundleError, Item

_TIMEOUT_SECONDS = 30
_TRIES = 4
_BLOCK = 1 << 18
# Seconds between two progress lines of a download.
_PROGRESS_SECONDS = 10
# Maximum size in bytes of an index or key, which is read into memory. The indexes of the CUDA repositories are a
# hundred times smaller.
_SMALL_BYTES = 1 << 28
# Maximum number of characters in a server's error message.
_MOST_WORDS = 300
_BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)


def digest(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            sha256.update(block)
    return sha256.hexdigest()


def has(path: Path, sha256: str) -> bool:
    return path.is_file() and digest(path) == sha256


def write(path: Path, content: bytes) -> bool:
    """Write a file atomically. Returns whether its content changed."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, 0o644) as file:
        file.write(content)
    return True


class Fetcher:
    """Fetches files.

    Downloads are first written to the folder `partial`. `say` prints a progress line.
    """

    def __init__(self, partial: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.partial = partial
        self.say = say

    def small(self, url: str, cure: str, optional: bool = False) -> bytes | None:
        """Return the content of a small file, for example of an index or key.

        Returns None if the file is optional and does not exist. Raises BundleError, with the fix `cure`, if it cannot
        be fetched.
        """
        for attempt in range(_TRIES):
            time.sleep(attempt)
            try:
                with self._open(url) as answer:
                    content = answer.read(_SMALL_BYTES)
                if _length(answer) not in (None, len(content)):
                    raise http.client.IncompleteRead(content)
                return content
            except _BROKEN as error:
                problem = _in_words(error)
                code = getattr(error, "code", 0)
                if optional and (code in (403, 404, 410) or _no_file(error)):
                    return None
                if not _may_pass(error):
                    break
        raise BundleError(url, "the download failed: %s" % problem, cure)

    def file(self, item: Item, target: Path) -> None:
        """Fetch or copy a file of the bundle to `target`.

        Raises BundleError if this fails, or if the file's SHA-256 is wrong.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        self.partial.mkdir(parents=True, exist_ok=True)
        part = self.partial / item.sha256
        if item.local:
            shutil.copyfile(str(item.local), str(part))
        else:
            self._download(item, part)
        actual = digest(part)
        if actual != item.sha256 and not item.local and self._was_resumed:
            # The part from an earlier run may be wrong, so download the whole file.
            part.unlink()
            self._download(item, part)
            actual = digest(part)
        if actual != item.sha256:
            part.unlink()
            raise BundleError(
                item.origin,
                "its SHA-256 is %s instead of %s, so it was not kept" % (actual, item.sha256),
                "Run again: the mirror may be updating. If it recurs, the file is changed in transit.",
            )
        part.chmod(0o644)
        part.replace(target)

    def _download(self, item: Item, part: Path) -> None:
        name = item.path.rpartition("/")[2]
        self._was_resumed = False
        problem = ""
        for attempt in range(_TRIES):
            time.sleep(attempt)
            present = part.stat().st_size if part.exists() else 0
            if present > item.size:
                part.unlink()
                present = 0
            if present == item.size and present:
                return
            try:
                with self._open(item.url, present) as answer:
                    resumed = present and answer.getcode() == 206
                    self._was_resumed = self._was_resumed or bool(resumed)
                    with part.open("ab" if resumed else "wb") as file:
                        self._copy(answer, file, present if resumed else 0, item.size, name)
                if part.stat().st_size >= item.size:
                    return
                problem = "it ended after %d of %d bytes" % (part.stat().st_size, item.size)
            except _BROKEN as error:
                problem = _in_words(error)
                if not _may_pass(error):
                    break
        raise BundleError(
            item.url,
            "the download failed: %s" % problem,
            "Run again to fetch the rest. The bundle was not changed.",
        )

    def _copy(self, answer: Any, file: Any, done: int, size: int, name: str) -> None:
        reported = time.monotonic()
        while True:
            block = answer.read(_BLOCK)
            if not block:
                return
            file.write(block)
            done += len(block)
            if done > size:
                return
            if time.monotonic() - reported >= _PROGRESS_SECONDS:
                reported = time.monotonic()
                self.say("%s: %s of %s" % (name, readable(done), readable(size)))

    @staticmethod
    def _open(url: str, offset: int = 0) -> Any:
        headers = {"Range": "bytes=%d-" % offset} if offset else {}
        # open_url uses Ansible's settings for proxies and certificates.
        return open_url(url, headers=headers, timeout=_TIMEOUT_SECONDS, http_agent="openfleet.gpu")


def readable(count: int) -> str:
    return "%d KiB" % -(-count // 1024) if count < 1 << 20 else "%.1f MiB" % (count / (1 << 20))


def _length(answer: Any) -> int | None:
    """Return the Content-Length of a response, or None if it has none.

    Raises HTTPException if the header is not a number.
    """
    given = (answer.headers.get("Content-Length") or "").strip()
    if given and not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise http.client.HTTPException("its Content-Length is not a number")
    return int(given) if given else None


def _no_file(error: Exception) -> bool:
    return isinstance(getattr(error, "reason", None), FileNotFoundError)


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed.

    A retry cannot succeed after a refusal by the server, or if the file of a `file://` address does not exist.
    """
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return code >= 500 or code in (408, 429)
    return not _no_file(error)


def _in_words(error: Exception) -> str:
    # The reason is a text from the server, so make it printable.
    words = text(str(getattr(error, "reason", "") or error), _MOST_WORDS) or type(error).__name__
    code = getattr(error, "code", None)
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    return "%s%s%s" % ("%s " % code if code else "", words, " (through the proxy of https_proxy)" if proxy else "")
