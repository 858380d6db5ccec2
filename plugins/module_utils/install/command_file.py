# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check whether the command gpu-layout on a host is current.

`archive` builds the command. This module is small, because the module `installed_module` sends it in each run.

The bytecode of equal sources may differ, so commands are not compared byte by byte. Instead, a command ends with two
digests. The first one is the digest of its inputs. The second one is the digest of all bytes before it. If one of them
differs, the command is replaced.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path

# Permission bits of the command.
MODE = 0o755
# Length of a SHA-256 in hexadecimal digits.
DIGEST_LENGTH = 64

PACKAGE = "openfleet_gpu"


def origin(digest: str) -> bytes:
    """Return a text that identifies the command's inputs.

    The inputs are the sources and this interpreter.
    """
    parts = [sys.version, shebang(sys.executable), digest]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest().encode()


def shebang(interpreter: str) -> str:
    """Return the command's interpreter line.

    The option -I isolates the interpreter, so that root imports nothing from the caller's environment or folders.
    """
    return "%s -I" % interpreter


def difference(command: Path, made_from: bytes) -> str | None:
    """Return why the command must be written, or None if it is current.

    Returns "" if the command is missing.
    """
    try:
        return problem(command.lstat(), command, made_from)
    except FileNotFoundError:
        return ""


def problem(status: os.stat_result, command: Path, made_from: bytes) -> str | None:
    """Return why a file is not the current command, or None."""
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid != os.geteuid():
        return "it belongs to user id %d" % status.st_uid
    if stat.S_IMODE(status.st_mode) != MODE:
        return "its mode is %04o" % stat.S_IMODE(status.st_mode)
    content = command.read_bytes()
    if not content.endswith(seal(content[:-DIGEST_LENGTH])):
        return "its content is not what was installed"
    return None if content[:-DIGEST_LENGTH].endswith(made_from) else "it is of another release, or of another Python"


def seal(content: bytes) -> bytes:
    """Return the digest that ends a command with this content."""
    return hashlib.sha256(content).hexdigest().encode()
