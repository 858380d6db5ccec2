# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the vGPU limiter's files for hosts.

The names are those in module_utils/install/vgpu_limiter.py.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Iterable, Mapping

from ..module_utils.errors import FleetError
from ..module_utils.install.vgpu_limiter import BUILT
from .on_demand import ROLES, texts

FILES = ROLES / "vgpu_limiter" / "files"
#: Globs for the library's sources in files/src. They do not match files that a build creates.
SOURCES = ("Makefile", "*.c", "*/*.[ch]")


def sources(built_files: Mapping[str, str]) -> dict[str, str]:
    """Return the content of the files to install, by name.

    These are the prebuilt files, or else the sources, and the files that are installed unchanged.
    """
    made_of = dict(built_files)
    if not made_of:
        for pattern in SOURCES:
            made_of.update(texts(FILES / "src", pattern, "src/"))
    return {**made_of, **texts(FILES, "*-run"), **texts(FILES, "openfleet-*")}


def built(files: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the prebuilt files in Base64, by name.

    `files` is the value of `vgpu_limiter_files`. Raises FleetError if a file cannot be read or does not have the
    SHA-256 in `files`.
    """
    contents: dict[str, str] = {}
    for file in files:
        path, wanted = Path(file["path"]).expanduser().resolve(), file.get("sha256")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise FleetError("vgpu_limiter_files: %s" % path, "it cannot be read: %s" % error.strerror) from error
        checksum = hashlib.sha256(content).hexdigest()
        if wanted and wanted.lower() != checksum:
            raise FleetError(
                "vgpu_limiter_files: %s" % path,
                "its SHA-256 is %s, but vgpu_limiter_files has %s" % (checksum, wanted),
                "Fetch the file again, or correct vgpu_limiter_files.",
            )
        contents["built/" + Path(file["path"]).name] = base64.b64encode(content).decode()
    missing = [name for name in BUILT if "built/" + name not in contents]
    if contents and missing:
        raise FleetError("vgpu_limiter_files", "it lacks %s" % " and ".join(missing), "List all files of the build.")
    return contents
