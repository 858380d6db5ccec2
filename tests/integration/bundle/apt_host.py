# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate an air-gapped host with the real apt.

apt sees only a bundle and the distribution's packages.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


class AptHost:
    """A host for apt.

    `installed` lists the packages that the distribution has already installed.
    """

    def __init__(self, folder: Path, installed) -> None:
        self.folder = folder
        for name in ("state/lists/partial", "cache/archives/partial", "etc/sources", "etc/preferences"):
            (folder / name).mkdir(parents=True)
        stanza = "Package: %s\nStatus: install ok installed\nVersion: 9999\nArchitecture: amd64\nMaintainer: x <x@x>\n"
        stanza += "Description: x\n"
        (folder / "state" / "status").write_text("\n".join(stanza % name for name in installed))
        # apt reads this file before this machine's own settings, which must have no effect.
        (folder / "apt.conf").write_text(
            'Dir::Etc::main "/dev/null";\nDir::Etc::parts "/dev/null";\nDir::Etc::sourcelist "/dev/null";\n'
            'Dir::Etc::sourceparts "%s/etc/sources";\nDir::Etc::preferencesparts "%s/etc/preferences";\n'
            'Dir::Etc::trustedparts "/dev/null";\nDir::State "%s/state";\nDir::State::status "%s/state/status";\n'
            'Dir::Cache "%s/cache";\nAPT::Sandbox::User "root";\nAPT::Architecture "amd64";\n'
            'APT::Architectures {"amd64";};\nDebug::NoLocking "true";\nAcquire::http::Proxy "DIRECT";\n'
            'Acquire::Retries "0";\n' % ((folder,) * 5)
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / "etc" / name).write_text(text)

    def apt(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["apt-get", "--quiet", "--yes", *arguments],
            capture_output=True,
            encoding="utf-8",
            check=False,
            env={**os.environ, "APT_CONFIG": str(self.folder / "apt.conf"), "LC_ALL": "C"},
        )

    def fetched(self) -> set:
        return {path.name for path in (self.folder / "cache" / "archives").glob("*.deb")}


def names(entries) -> list:
    """Return which packages the bundle needs from the distribution.

    A manifest entry may have alternatives. The function returns the first alternative, without its version.
    """
    return sorted({re.split(r"[ |(]", entry["name"])[0] for entry in entries})
