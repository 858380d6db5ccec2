# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetching: every file by its SHA-256, resumed where it broke off, and in its place only when it is whole and right."""

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
#: Between two lines about one long download.
_PROGRESS_SECONDS = 10
#: The largest index or key that is read into memory; the CUDA repositories' indexes are a hundredth of it.
_SMALL_BYTES = 1 << 28
#: Letters of what a server says is wrong.
_MOST_WORDS = 300
_BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            found.update(block)
    return found.hexdigest()


def has(path: Path, sha256: str) -> bool:
    return path.is_file() and digest(path) == sha256


def write(path: Path, content: bytes) -> bool:
    """Write it whole or not at all; gives whether anything changed."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, 0o644) as file:
        file.write(content)
    return True


class Fetcher:
    """Fetches into `partial` first. `say` takes a line about progress."""

    def __init__(self, partial: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.partial = partial
        self.say = say

    def small(self, url: str, cure: str, optional: bool = False) -> bytes | None:
        """An index or a key. None where it is optional and not there. Raises BundleError."""
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
        raise BundleError(url, "it cannot be fetched: %s" % problem, cure)

    def file(self, item: Item, target: Path) -> None:
        """A file of the bundle, from its address or from this machine. Raises BundleError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self.partial.mkdir(parents=True, exist_ok=True)
        part = self.partial / item.sha256
        if item.local:
            shutil.copyfile(str(item.local), str(part))
        else:
            self._download(item, part)
        found = digest(part)
        if found != item.sha256 and not item.local and self._was_resumed:
            # What was there from an earlier run may have been the reason.
            part.unlink()
            self._download(item, part)
            found = digest(part)
        if found != item.sha256:
            part.unlink()
            raise BundleError(
                item.origin,
                "its SHA-256 is %s, and %s was expected" % (found, item.sha256),
                "It was changed on the way, or its mirror is in the middle of an update. It was not kept; run again.",
            )
        part.chmod(0o644)
        part.replace(target)

    def _download(self, item: Item, part: Path) -> None:
        name = item.path.rpartition("/")[2]
        self._was_resumed = False
        problem = ""
        for attempt in range(_TRIES):
            time.sleep(attempt)
            there = part.stat().st_size if part.exists() else 0
            if there > item.size:
                part.unlink()
                there = 0
            if there == item.size and there:
                return
            try:
                with self._open(item.url, there) as answer:
                    resumed = there and answer.getcode() == 206
                    self._was_resumed = self._was_resumed or bool(resumed)
                    with part.open("ab" if resumed else "wb") as file:
                        self._copy(answer, file, there if resumed else 0, item.size, name)
                if part.stat().st_size >= item.size:
                    return
                problem = "it broke off after %d of %d bytes" % (part.stat().st_size, item.size)
            except _BROKEN as error:
                problem = _in_words(error)
                if not _may_pass(error):
                    break
        raise BundleError(
            item.url,
            "it cannot be fetched: %s" % problem,
            "What came so far is kept apart, and the rest fetched by the next run. The bundle's index is as it was.",
        )

    def _copy(self, answer: Any, file: Any, done: int, size: int, name: str) -> None:
        told = time.monotonic()
        while True:
            block = answer.read(_BLOCK)
            if not block:
                return
            file.write(block)
            done += len(block)
            if done > size:
                return
            if time.monotonic() - told >= _PROGRESS_SECONDS:
                told = time.monotonic()
                self.say("%s: %s of %s" % (name, readable(done), readable(size)))

    @staticmethod
    def _open(url: str, offset: int = 0) -> Any:
        headers = {"Range": "bytes=%d-" % offset} if offset else {}
        # With Ansible's own settings of proxies and certificates.
        return open_url(url, headers=headers, timeout=_TIMEOUT_SECONDS, http_agent="openfleet.gpu")


def readable(count: int) -> str:
    return "%d KiB" % -(-count // 1024) if count < 1 << 20 else "%.1f MiB" % (count / (1 << 20))


def _length(answer: Any) -> int | None:
    """Return how long the server says that its answer is; None where it does not say. Raises HTTPException."""
    given = (answer.headers.get("Content-Length") or "").strip()
    if given and not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise http.client.HTTPException("its Content-Length is no number")
    return int(given) if given else None


def _no_file(error: Exception) -> bool:
    return isinstance(getattr(error, "reason", None), FileNotFoundError)


def _may_pass(error: Exception) -> bool:
    """Whether trying again is worth it: not where the server has said no, nor where the address means nothing."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return code >= 500 or code in (408, 429)
    return not _no_file(error)


def _in_words(error: Exception) -> str:
    # The reason is the server's own words.
    words = text(str(getattr(error, "reason", "") or error), _MOST_WORDS) or type(error).__name__
    code = getattr(error, "code", None)
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    return "%s%s%s" % ("%s " % code if code else "", words, " (by the proxy of https_proxy)" if proxy else "")
