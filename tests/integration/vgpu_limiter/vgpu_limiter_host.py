# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Represent a host by a directory, and install the limiter there.

The module installs a small library that represents the limiter. Different texts represent different versions. The
molecule scenario vgpu installs the limiter itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.integration.install_module import HOST_PYTHON, result, run_module

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = REPOSITORY / "roles" / "vgpu_limiter" / "files"
__all__ = ["HOST_PYTHON"]
DIRECTORY = "usr/lib/openfleet-gpu/vgpu"
TENANTS = "etc/openfleet-gpu/vgpu"

MAKEFILE = """
all: $(BUILD)/libopenfleet-vgpu.so $(BUILD)/libcuda.so.1 $(BUILD)/vgpu-top
$(BUILD)/libopenfleet-vgpu.so: parts/library.c
\tmkdir -p $(BUILD) && cc -shared -fPIC -Wl,-soname,libopenfleet-vgpu.so -o $@ $<
$(BUILD)/libcuda.so.1: parts/library.c
\tmkdir -p $(BUILD) && cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $<
$(BUILD)/vgpu-top: top.c
\tmkdir -p $(BUILD) && cc -o $@ $<
"""


def source_of(text: str, files: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return sources of a library whose function `version` returns the text.

    `files` replaces or adds source files.
    """
    library = 'const char *openfleet_version(void) { return "%s"; }\n' % text
    return {
        "Makefile": MAKEFILE,
        "parts/library.c": library,
        "top.c": "int main(void) { return 0; }\n",
        **files,
    }


def write_source(folder: Path, text: str) -> None:
    """Write the sources of a stand-in library into a folder."""
    for name, content in source_of(text).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root
        # Other processes on this machine may have mapped other tests' libraries. With the path, the versions are
        # unique.
        self.version = str(root)
        self.environment = dict(os.environ)

    def bundle(self, version: str = "one", **changes) -> dict:
        """Return the module's arguments.

        `source` or `built` has the files that the module's action plugin reads on the controller.
        """
        plain = {
            "state": "present",
            "source": source_of("%s %s" % (self.version, version)),
            "built": {},
            "services": {},
        }
        return dict(plain, **changes)

    def run(self, bundle: dict, check: bool = False):
        arguments = {"state": bundle["state"], "services": bundle["services"]}
        arguments["files"] = [{"path": "/on/the/controller/" + name} for name in bundle["built"]]
        sources = {"src/" + name: text for name, text in bundle["source"].items()}
        sources.update(("built/" + name, text) for name, text in bundle["built"].items())
        names = ("vgpu-run", "openfleet-vgpu.cil", "openfleet-vgpu.apparmor")
        sources.update((name, (FILES / name).read_text()) for name in names)
        if bundle["state"] == "absent":
            sources = {}
        return run_module("vgpu_limiter", self.root, arguments, sources, check, self.environment)

    def installed(self, bundle: dict, check: bool = False) -> dict:
        return result(self.run(bundle, check))

    def refused(self, bundle: dict) -> str:
        done = self.run(bundle)
        assert done.returncode == 1
        return json.loads(done.stdout)["msg"]

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}

    def library(self) -> Path:
        """Return the target of the library's link."""
        return (self.root / DIRECTORY / "libopenfleet-vgpu.so").resolve(strict=True)

    def tenant(self, name: str, **files: str) -> Path:
        """Write a tenant's directory as the layout does, and return its path."""
        directory = self.root / TENANTS / name
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(text)
        return directory
