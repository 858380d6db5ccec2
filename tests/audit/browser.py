# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium that opens files: sizes, colour schemes, expressions, pictures. It speaks over a pipe, no port is open.

Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Iterator

#: As Debian, Fedora and Google name it.
NAMES = ("chromium", "chromium-browser", "google-chrome")

#: For one answer: generous, since the machine may be busy with other tests.
_SECONDS = 240

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip


def program() -> str | None:
    """Where it is; None where it is not installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Started, with all that it writes in the folder; ended with the block."""
    ours_in, theirs_out = _pipe()
    theirs_in, ours_out = _pipe()
    command = [program(), *_FLAGS, "--user-data-dir=%s" % (folder / "profile"), "about:blank"]
    environment = {**os.environ, "HOME": str(folder), "IN": str(theirs_in), "OUT": str(theirs_out)}
    with (folder / "chromium.log").open("w") as log:
        # It reads from the file descriptor 3 and writes to 4.
        process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&"$IN" 4>&"$OUT"', "bash", *command],
            env=environment, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out, folder / "chromium.log")
    finally:
        # It ends with its pipe.
        os.close(ours_out)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
        os.close(ours_in)


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, out of the way of 3 and 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    def __init__(self, incoming: int, outgoing: int, log: Path) -> None:
        self._in, self._out, self._log = incoming, outgoing, log
        self._buffer = b""
        self._number = 0
        self._session = ""
        #: Addresses of everything that pages asked for.
        self.requests: list[str] = []
        self._loads = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(domain + ".enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            found = self._message(deadline)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _out, _odd = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(self._in, 1 << 20) if ready else b""
            assert block, "Chromium said nothing: " + self._log.read_text(errors="replace")[-2000:]
            self._buffer += block
        text, _end, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(text)
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["params"]["request"]["url"])
        self._loads += found.get("method") == "Page.loadEventFired"
        return found

    def show(self, path: Path, *, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Open a file anew on a screen of this size; below 800 it is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 800,
        )  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url="about:blank")
        before = self._loads
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + _SECONDS
        while self._loads == before or self.tell("document.readyState") != "complete":
            assert time.monotonic() < deadline, "%s did not load" % path
            if self._loads == before:
                self._message(deadline)
        assert self.tell("location.href") == path.as_uri()

    def tell(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as data."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot of what is seen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
