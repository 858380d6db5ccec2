# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's Chromium without a screen, driven by Playwright: files opened in it, and what they asked for and said."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

#: As Debian and Google name it.
_NAMES = ("chromium", "google-chrome")

#: For whatever is waited for: generous, since the machine may be busy with other tests.
_MILLISECONDS = 240_000

_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def program() -> str | None:
    """Where it is; None where it is not installed. A snap's is none: it cannot see the files of the tests."""
    found = [path for path in map(shutil.which, _NAMES) if path and not path.startswith("/snap/")]
    return found[0] if found else None


def is_to_be_there() -> bool:
    """Whether `make setup-test` installs it: on Debian; Ubuntu's package only fetches a snap."""
    return platform.freedesktop_os_release().get("ID") == "debian"


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Started, with what it writes of its own in the folder; ended with the block."""
    homes = {name: str(folder) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    with sync_playwright() as driver:
        # Without executable_path Playwright looks for a browser that it has fetched itself.
        started = driver.chromium.launch(
            executable_path=program(), args=_FLAGS, env={**os.environ, **homes}, timeout=_MILLISECONDS
        )
        try:
            yield started
        finally:
            started.close()


@dataclass(frozen=True)
class Screen:
    """A page that was opened: addresses of everything that it asked for, and what it wrote to the console."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@contextlib.contextmanager
def screen(
    started: Browser, path: Path, *, width: int = 1280, scheme: str = "light", media: str = "screen"
) -> Iterator[Screen]:
    """A file on a screen of this width, below 800 a phone's, or on paper of that width (media print)."""
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
