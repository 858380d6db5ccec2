# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the command gpu-layout as one file: a zip archive that Python runs.

Python does not cache bytecode for modules in an archive, which would cost 0.1 s at each start. The archive therefore
contains the bytecode of the installing interpreter. Other interpreters use the source, which is in the archive too.

The bytecode of equal sources may differ, so archives are not compared byte by byte. Instead, an archive ends with a
comment that has two digests: one of its inputs and one of all bytes before the comment. If one of them differs, the
command is replaced.

In a checkout, `python3 plugins/module_utils/install/archive.py FILE` builds the command together with pynvml as one
file, for hosts without Ansible. This file must therefore import only the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import py_compile
import stat
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Mapping

# Permission bits of the command.
MODE = 0o755
# Length of a SHA-256 in hexadecimal digits.
DIGEST_LENGTH = 64

PACKAGE = "openfleet_gpu"
# A short run spends a sixth of its time on garbage collection, on reading each module a second time, and on destroying
# its objects. MAIN avoids all three.
MAIN = (
    """\
import gc
import os
import sys
import zipimport

gc.set_threshold(50_000)


class Importer(zipimport.zipimporter):
    def get_filename(self, name):
        # zipimport reads and decodes the module for this, and again to run it.
        package = "/__init__" if self.is_package(name) else ""
        return "%%s/%%s%%s%%s.py" %% (self.archive, self.prefix, name.rpartition(".")[2], package)


sys.path_hooks.insert(0, Importer)
sys.path_importer_cache.pop(sys.path[0], None)

from %s.cli.main import main

status = main()
for stream in filter(None, (sys.stdout, sys.stderr)):
    stream.flush()
os._exit(status)
"""
    % PACKAGE
)
# Patterns for the files of the command below module_utils. They include the modules `layout` and `layout_boot`.
PATTERNS = (
    *("*.py", "models/*.json", "techniques/*.py", "techniques/*/*.py"),
    *("%s/*.py" % name for name in ("cdi", "change", "cli", "export", "holders", "keep", "layout", "metrics")),
    *("%s/*.py" % name for name in ("plan", "processes", "vendors", "vendors/*", "vendors/*/*")),
    *("install/%s.py" % name for name in ("__init__", "archive", "files", "layout_boot", "sources")),
)
# Files that match the patterns but are not needed by the command.
LEFT_OUT = ("service_module.py",)


def read_sources() -> dict[str, str]:
    """Return the sources of the command. Keys are paths below module_utils."""
    utils = Path(__file__).resolve().parents[1]
    files = [file for pattern in PATTERNS for file in utils.glob(pattern) if file.name not in LEFT_OUT]
    return {str(file.relative_to(utils)): file.read_text(encoding="utf-8") for file in files}


def sources_digest(sources: Mapping[str, str]) -> str:
    """Return the digest of a set of sources."""
    parts = [MAIN, *(part for item in sorted(sources.items()) for part in item)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def origin(digest: str) -> bytes:
    """Return a text that identifies the inputs of the command.

    The inputs are the digest of the sources and this interpreter.
    """
    parts = [sys.version, shebang(sys.executable), digest]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest().encode()


def shebang(interpreter: str) -> str:
    """Return the interpreter line of the command.

    The option -I isolates the interpreter, so that root imports nothing from the caller's environment or folders.
    """
    return "%s -I" % interpreter


def difference(command: Path, made_from: bytes) -> str | None:
    """Return why the command must be written.

    Returns "" if the command is missing, and None if it is current.
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
    if not content.endswith(_seal(content[:-DIGEST_LENGTH])):
        return "its content is not what was installed"
    return None if content[:-DIGEST_LENGTH].endswith(made_from) else "it is of another release, or of another Python"


def archive(sources: Mapping[str, str], made_from: bytes, interpreter: str) -> bytes:
    """Return the command as bytes.

    `sources` are texts by path below the package. The archive also has the bytecode of each Python file.
    """
    members = {"__main__.py": MAIN, "%s/__init__.py" % PACKAGE: ""}
    members.update(("%s/%s" % (PACKAGE, path), text) for path, text in sources.items())
    content = io.BytesIO()
    content.write(b"#!%s\n" % interpreter.encode())
    with zipfile.ZipFile(content, "a") as bundled:
        # The comment is at the end of the archive.
        bundled.comment = made_from + b"." * DIGEST_LENGTH
        for path, text in sorted(members.items()):
            _add(bundled, os.path.normpath(path), text.encode())
            if path.endswith(".py"):
                # Not compressed, because every start reads it.
                _add(bundled, os.path.normpath(path) + "c", _bytecode(path, text), deflated=False)
    whole = content.getvalue()[:-DIGEST_LENGTH]
    return whole + _seal(whole)


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _add(bundled: Any, path: str, content: bytes, deflated: bool = True) -> None:
    compression = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    bundled.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content, compression)


def _bytecode(path: str, text: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gpu-layout-") as folder:
        source, compiled = Path(folder, "source.py"), Path(folder, "compiled.pyc")
        source.write_text(text, encoding="utf-8")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(source), str(compiled), dfile=path, doraise=True, invalidation_mode=mode)
        return compiled.read_bytes()


def build(file: Path) -> None:
    """Write the command, together with pynvml, as one file."""
    import pynvml

    binding = Path(pynvml.__file__).read_text(encoding="utf-8")
    sources = dict(read_sources(), **{"../pynvml.py": binding})
    file.write_bytes(archive(sources, origin(sources_digest(sources)), "/usr/bin/env python3"))
    file.chmod(MODE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the command gpu-layout as one file that includes pynvml.")
    parser.add_argument("file", type=Path, metavar="FILE")
    build(parser.parse_args().file)


if __name__ == "__main__":
    main()
