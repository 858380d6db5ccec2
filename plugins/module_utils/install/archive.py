# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the command gpu-layout as one file: a zip archive that Python runs.

Python does not cache bytecode of modules in an archive, and compiling would take 0.1 s at each start. So the archive
contains the installing interpreter's bytecode, and the source for other interpreters.

`build_command` reads the sources. The archive's comment has the digests that `command_file` checks.
"""

from __future__ import annotations

import io
import os
import py_compile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Mapping

from .command_file import DIGEST_LENGTH, PACKAGE, seal

# MAIN avoids three things that take a sixth of a short run's time: garbage collection, reading each module a second
# time, and destroying the objects.
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


def archive(sources: Mapping[str, str], made_from: bytes, interpreter: str) -> bytes:
    """Return the command as bytes.

    `sources` has texts by path below the package. The archive also gets each Python file's bytecode.
    """
    members = {"__main__.py": MAIN, "%s/__init__.py" % PACKAGE: ""}
    members.update(("%s/%s" % (PACKAGE, path), text) for path, text in sources.items())
    content = io.BytesIO()
    content.write(b"#!%s\n" % interpreter.encode())
    with zipfile.ZipFile(content, "a") as bundled:
        # The comment of a zip archive is at the end of the file.
        bundled.comment = made_from + b"." * DIGEST_LENGTH
        for path, text in sorted(members.items()):
            _add(bundled, os.path.normpath(path), text.encode())
            if path.endswith(".py"):
                # Do not compress bytecode, because every start reads it.
                _add(bundled, os.path.normpath(path) + "c", _bytecode(path, text), deflated=False)
    whole = content.getvalue()[:-DIGEST_LENGTH]
    return whole + seal(whole)


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
