# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rebuild a package file from the installed files.

A rollback needs this if no source offers the old version any more. Like dpkg-repack, this module uses dpkg's list of
the package's files and its control data.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from ..processes.command import Run, run_to_end

_INFO = Path("/var/lib/dpkg/info")
#: Control files that dpkg writes itself and refuses in a package.
_NOT_CONTROL = ("list", "md5sums")
#: Folders of packages that are links if the system has a merged /usr.
_MERGED = ("/bin", "/lib", "/lib64", "/sbin")


def repack(name: str, folder: Path, call: Run = run_to_end) -> str:
    """Write NAME.deb into `folder`. Return "" or the error."""
    stanza = call(["dpkg-query", "--status", name])
    listed = call(["dpkg-query", "--listfiles", name])
    if stanza.returncode != 0 or listed.returncode != 0:
        return "%s is not installed" % name
    tree = folder / (name + ".tree")
    shutil.rmtree(str(tree), ignore_errors=True)
    control = tree / "DEBIAN"
    control.mkdir(parents=True)
    control.chmod(0o755)
    (control / "control").write_text(_control(stanza.stdout))
    for kept in [*_INFO.glob(name + ".*"), *_INFO.glob(name + ":*.*")]:
        kind = kept.name.rpartition(".")[2]
        if kind not in _NOT_CONTROL:
            shutil.copy2(str(kept), str(control / kind))
    missing = [path for path in listed.stdout.splitlines() if path.startswith("/") and not _copy(Path(path), tree)]
    if missing:
        return "%s lacks %s" % (name, ", ".join(missing[:3]))
    done = call(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(folder / (name + ".deb"))])
    shutil.rmtree(str(tree), ignore_errors=True)
    return "" if done.returncode == 0 else done.stderr.strip()


def _control(status: str) -> str:
    """Return the control stanza without the fields that only dpkg's database has."""
    lines, skip = [], False
    for line in status.splitlines():
        if not line.startswith(" "):
            skip = line.startswith(("Status:", "Conffiles:", "Config-Version:"))
        if not skip:
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _copy(path: Path, tree: Path) -> bool:
    new = tree / path.relative_to("/")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        # A file of the package is missing. Only documentation may be missing (path-exclude of dpkg).
        return path.parts[:3] == ("/", "usr", "share")
    if stat.S_ISDIR(mode) or str(path) in _MERGED:
        new.mkdir(parents=True, exist_ok=True)
    elif stat.S_ISLNK(mode):
        new.parent.mkdir(parents=True, exist_ok=True)
        new.symlink_to(os.readlink(str(path)))
    elif stat.S_ISREG(mode):
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(path), str(new))
    return True
