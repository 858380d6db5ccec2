# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory that stands for a host, and the role's installer for it.

What is installed is a small library that stands for the limiter's: another text is another version. The limiter itself
is installed by the molecule scenario vgpu.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = REPOSITORY / "roles" / "vgpu_limiter" / "files"
#: The interpreter that stands for a host's: code on hosts is to run on old ones too.
HOST_PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
DIRECTORY = "usr/lib/openfleet-gpu/vgpu"
TENANTS = "etc/openfleet-gpu/vgpu"

MAKEFILE = """
all: $(BUILD)/libopenfleet-vgpu.so $(BUILD)/libcuda.so.1 $(BUILD)/vgpu-top
$(BUILD)/libopenfleet-vgpu.so: library.c
\tmkdir -p $(BUILD) && cc -shared -fPIC -Wl,-soname,libopenfleet-vgpu.so -o $@ $<
$(BUILD)/libcuda.so.1: library.c
\tmkdir -p $(BUILD) && cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $<
$(BUILD)/vgpu-top: top.c
\tmkdir -p $(BUILD) && cc -o $@ $<
"""


def source_of(text: str, **files: str) -> dict[str, str]:
    """Sources of a library whose function `version` returns the text."""
    library = 'const char *openfleet_version(void) { return "%s"; }\n' % text
    return {
        "Makefile": MAKEFILE,
        "library.c": library,
        "top.c": "int main(void) { return 0; }\n",
        **{name.replace("_c", ".c"): body for name, body in files.items()},
    }


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root
        # Versions of other tests may be mapped by other processes of this machine; they are told apart by name.
        self.version = str(root)
        self.environment = dict(os.environ)

    def bundle(self, version: str = "one", **changes) -> dict:
        plain = {
            "state": "present",
            "source": source_of("%s %s" % (self.version, version)),
            "built": {},
            "run": (FILES / "vgpu-run").read_text(),
            "selinux": (FILES / "openfleet-vgpu.cil").read_text(),
            "apparmor": (FILES / "openfleet-vgpu.apparmor").read_text(),
            "services": {},
        }
        return dict(plain, **changes)

    def run(self, bundle: dict, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [HOST_PYTHON, str(FILES / "install.py"), "--root", str(self.root), *arguments],
            input=json.dumps(bundle),
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=300,
        )

    def installed(self, bundle: dict, *arguments: str) -> dict:
        done = self.run(bundle, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, bundle: dict, *arguments: str) -> str:
        done = self.run(bundle, *arguments)
        assert done.returncode == 1 and done.stdout == ""
        assert "Traceback" not in done.stderr
        return done.stderr

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}

    def library(self) -> Path:
        """What the link leads to."""
        return (self.root / DIRECTORY / "libopenfleet-vgpu.so").resolve(strict=True)

    def tenant(self, name: str, **files: str) -> Path:
        """A tenant's directory, written as the layout writes it."""
        directory = self.root / TENANTS / name
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(text)
        return directory
