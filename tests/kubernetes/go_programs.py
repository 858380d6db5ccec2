# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build programs from a Go module that only some tests need.

The module caches the programs together with those of tests/kubernetes/build.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.kubernetes.control_plane import REPOSITORY

_FLAGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false -trimpath", "GOGC": "400"}


class GoModule:
    """A folder of tests/kubernetes with go.mod and go.sum.

    `cgo` is true if its programs load C libraries. If a library lacks a function, only calling the function fails.
    """

    def __init__(self, name: str, cgo: bool = False) -> None:
        self.folder = Path(__file__).with_name(name)
        self._cgo = cgo
        cache = Path(os.environ.get("OPENFLEET_GO_CACHE") or REPOSITORY / ".cache" / "go").absolute()
        sources = b"".join((self.folder / each).read_bytes() for each in ("go.mod", "go.sum"))
        self._finished = cache / ("%s-%s" % (name, hashlib.sha256(sources).hexdigest()[:16]))
        caches = {"GOCACHE": str(cache / "build"), "GOMODCACHE": str(cache / "modules")}
        self._environment = {**os.environ, **_FLAGS, **caches, "CGO_ENABLED": "1" if cgo else "0"}

    def build(self, package: str) -> Path:
        """Build a program if it is missing.

        Return the folder of the module's programs.
        """
        library = " -extldflags=-Wl,-z,lazy" if self._cgo else ""
        self._go(
            "build", "-o", "%s/" % self._finished, "-gcflags=all=-dwarf=false", "-ldflags=-s -w" + library, package
        )
        return self._finished

    def problem(self) -> str:
        """Say why this machine's Go is too old for the module.

        Return `""` if it is not.
        """
        command = ["go", "list", "-m"]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, check=False, capture_output=True, text=True
        )
        return done.stderr.strip() if done.returncode and "requires go" in done.stderr else ""

    def source(self, module: str) -> Path:
        """Return the folder with a required module's source."""
        return Path(self._go("list", "-m", "-f", "{{.Dir}}", module).strip())

    def _go(self, *words: str) -> str:
        command = ["go", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout
