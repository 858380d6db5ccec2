# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the vGPU limiter is installed from, by the names that module_utils/install/vgpu_limiter.py reads."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Iterable, Mapping

from ..module_utils.errors import FleetError
from ..module_utils.install.vgpu_limiter import BUILT
from .on_demand import ROLES, texts

FILES = ROLES / "vgpu_limiter" / "files"
#: What the library is built from, below files/src: without what a build there has left.
SOURCES = ("Makefile", "*.c", "*/*.[ch]")


def sources(built_files: Mapping[str, str]) -> dict[str, str]:
    """Return texts by name: the files that were built, or else the source, and what is installed as it is."""
    made_of = dict(built_files)
    if not made_of:
        for pattern in SOURCES:
            made_of.update(texts(FILES / "src", pattern, "src/"))
    return {**made_of, **texts(FILES, "vgpu-run"), **texts(FILES, "openfleet-vgpu.*")}


def built(files: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return files that were built elsewhere, in Base64. Raises FleetError if one is not the one that was meant."""
    found: dict[str, str] = {}
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
                "the SHA-256 of the file is %s, and vgpu_limiter_files says %s" % (checksum, wanted),
                "Find out which of the two is right.",
            )
        found["built/" + Path(file["path"]).name] = base64.b64encode(content).decode()
    missing = [name for name in BUILT if "built/" + name not in found]
    if found and missing:
        raise FleetError(
            "vgpu_limiter_files", "there is no %s" % " and no ".join(missing), "Name all files of a build."
        )
    return found
