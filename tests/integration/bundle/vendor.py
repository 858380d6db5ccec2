# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve signed stand-ins for NVIDIA's two repositories.

The web server can fail on request.
"""

from __future__ import annotations

import http.server
import shutil
import subprocess
import tempfile
import threading
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from tests.integration.patience import wait_until

REPOSITORY = Path(__file__).parents[3]
LAB = REPOSITORY / "tests" / "lab"
DRIVERS = ("580.95.05", "580.105.08")
TOOLKITS = ("1.17.8", "1.18.2")


def _build():
    """Load the lab's build program, a file without a suffix, as a module."""
    loader = SourceFileLoader("mirror_build", str(LAB / "mirror" / "build"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Vendor:
    """Stand-ins for NVIDIA's repositories.

    `root` is the folder that the web server provides. `fingerprint` is the key's fingerprint. `requests` lists the
    requested paths.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.build = _build()
        self.driver = root / "cuda" / "debian12" / "x86_64"
        self.toolkit = root / "toolkit" / "deb" / "amd64"
        self._packages()
        # gpg's agent creates a socket in this folder, so its path must be short.
        self.home = Path(tempfile.mkdtemp(prefix="bundle-gpg-"))
        # Start the agent here, because gpg itself would wait five seconds for it.
        launch = ["gpgconf", "--homedir", str(self.home), "--launch", "gpg-agent"]
        wait_until(lambda: subprocess.run(launch, check=False).returncode == 0, "gpg's agent")
        for who in (self.build.OWNER, self.build.FOREIGN):
            self._gpg("--quick-generate-key", who, "ed25519", "sign", "never")
        self.fingerprint = self._fingerprint(self.build.OWNER)
        self.key = self.export(self.build.OWNER)
        (self.driver / "3bf863cc.pub").write_text(self.key)
        (root / "toolkit" / "gpgkey").write_text(self.key)
        self.sign()
        self.requests: list[tuple[str, str]] = []
        #: The server stops responses for these paths after the first half.
        self.dying: set[str] = set()

    def _packages(self) -> None:
        from tests.lab.mirror.stand_ins import STAND_INS
        from tests.lab.toolkit_mirror.toolkit_stand_ins import stand_ins

        built = self.root / "built"
        built.mkdir(parents=True)
        (built / "libnvidia-ml.so.1").write_text("a stand-in of a stand-in\n")
        for folder in (self.driver, self.toolkit):
            folder.mkdir(parents=True)
        for version in DRIVERS:
            for package in STAND_INS:
                if version == DRIVERS[-1] or package.version != "2025.06.11-1":
                    self.build.make_deb(package, version, self.driver, built)
        for version in TOOLKITS:
            for package in stand_ins(version, "#!/bin/sh\n"):
                self.build.make_deb(package, version, self.toolkit, built)

    def _gpg(self, *arguments: str) -> str:
        return self.build.gpg(*arguments, home=self.home)

    def _fingerprint(self, who: str) -> str:
        listing = self._gpg("--with-colons", "--fingerprint", who)
        return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))

    def export(self, who: str) -> str:
        return self._gpg("--armor", "--export", who)

    def sign(self, who: str = "") -> None:
        for folder in (self.driver, self.toolkit):
            self.build.index(folder)
            self.build.sign(folder, who or self.build.OWNER, self.home)

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False)
        shutil.rmtree(self.home, ignore_errors=True)

    # -- Serving -----------------------------------------------------------------------------------------------------

    def serve(self) -> http.server.ThreadingHTTPServer:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = "http://127.0.0.1:%d" % server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def _handler(self):
        vendor = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                vendor.requests.append((self.path, self.headers.get("Range", "")))
                path = vendor.root / self.path.lstrip("/")
                if not path.is_file():
                    self.send_error(404)
                    return
                content = path.read_bytes()
                start = int((self.headers.get("Range") or "bytes=0-")[6:].rstrip("-"))
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                end = len(content) // 2 if self.path in vendor.dying else len(content)
                self.wfile.write(content[start:end])
                self.close_connection = True

            def log_message(self, *arguments):
                pass

        return Handler
