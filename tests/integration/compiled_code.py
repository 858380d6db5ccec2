# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile each source once, and cache the code by the source's checksum.

Ansible sends a module as source in an archive, and compiling takes most of the module's time on an idle host. The cache
contains exactly the code that this interpreter compiled from the same source. So a module behaves as without the cache.
This file imports little, because every process on a lab host waits for it at its start.
"""

import _imp
import os
import sys


def keep(folder):
    """Make Python's importers cache compiled code in this folder.

    Other users must not be able to write to the folder, because Python runs the code in it.
    """
    import importlib.machinery
    import zipimport

    compile_source = zipimport._compile_source
    source_to_code = importlib.machinery.SourceFileLoader.source_to_code

    def of_archive(path, source):
        return _kept(folder, "z", path, source, lambda: compile_source(path, source))

    def of_file(self, data, path, *, _optimize=-1):
        def compiled():
            return source_to_code(self, data, path, _optimize=_optimize)

        return _kept(folder, "f%d" % _optimize, path, data, compiled) if isinstance(data, bytes) else compiled()

    zipimport._compile_source = of_archive
    importlib.machinery.SourceFileLoader.source_to_code = of_file


def _kept(folder, kind, path, source, compiled):
    """Return a source's code from its cached file.

    If the file is missing, call `compiled` and write its result to the file.
    """
    import _sha1
    import marshal

    name = "%s/%s-%s-%s" % (folder, sys.implementation.cache_tag, kind, _sha1.sha1(source).hexdigest())
    try:
        with open(name, "rb") as file:  # noqa: PTH123
            code = marshal.load(file)
        _imp._fix_co_filename(code, path)
        return code
    except (OSError, EOFError, ValueError, TypeError):
        code = compiled()
    try:
        # Hosts share the folder and can have processes with the same pid, so the pid would not be unique.
        with open("%s.%s" % (name, os.urandom(8).hex()), "xb") as file:  # noqa: PTH123
            marshal.dump(code, file)
        os.rename(file.name, name)  # noqa: PTH104
    except OSError:
        pass
    return code
