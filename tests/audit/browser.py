# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open files in a headless Chromium, and record its requests and messages.

Playwright controls Debian's Chromium.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

#: Program names that Debian and Google use.
_NAMES = ("chromium", "google-chrome")

#: Timeout of all waits. It is long because other tests may run at the same time.
_MILLISECONDS = 240_000

_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def program() -> str | None:
    """Return the browser's path, or None if the browser is missing.

    The function ignores a browser from a snap, which cannot read the tests' files.
    """
    found = [path for path in map(shutil.which, _NAMES) if path and not path.startswith("/snap/")]
    return found[0] if found else None


def is_to_be_there() -> bool:
    """Return whether `make setup-test` installs the browser.

    make installs it on Debian. Ubuntu's package only fetches a snap.
    """
    return platform.freedesktop_os_release().get("ID") == "debian"


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a browser until the block ends.

    The browser stores its own files in `folder`.
    """
    homes = {name: str(folder) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    with sync_playwright() as driver:
        # Without executable_path, Playwright uses only a browser that it downloaded itself.
        started = driver.chromium.launch(
            executable_path=program(), args=_FLAGS, env={**os.environ, **homes}, timeout=_MILLISECONDS
        )
        try:
            yield started
        finally:
            started.close()


@dataclass(frozen=True)
class Screen:
    """An open page, the addresses that it requested, and its console messages."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@contextlib.contextmanager
def screen(
    started: Browser, path: Path, *, width: int = 1280, scheme: str = "light", media: str = "screen"
) -> Iterator[Screen]:
    """Open a file on a screen or on paper of this width in pixels.

    Below 800, the screen is a phone's. `media` is "print" for paper.
    """
    phone = media == "screen" and width < 800
    with started.new_context(viewport={"width": width, "height": 800}, is_mobile=phone, color_scheme=scheme) as context:
        context.set_default_timeout(_MILLISECONDS)
        page = context.new_page()
        page.emulate_media(media=media)
        found = Screen(page, path.as_uri())
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.said.append(message.text))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        page.goto(found.address)
        yield found
