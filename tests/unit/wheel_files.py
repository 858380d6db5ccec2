# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create wheels for a test, and requirements with their hashes."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", module: str = "", code: str = "") -> str:
    """Create a wheel that contains one module. Return its SHA-256."""
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    members = {
        f"{module or stem}.py": f"__version__ = '{version}'\n{code}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(text)}\n"
    members[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    made = folder / f"{stem}-{version}-{tag}.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in members.items():
            # ZipInfo has a constant time, so the same content gives the same file.
            archive.writestr(zipfile.ZipInfo(path), text)
    return hashlib.sha256(made.read_bytes()).hexdigest()
