# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs exporter_install on the host, which gets its modules with what is to be installed, as one JSON object on standard input:
{"program": {module: text}, ...}. Nothing of it is left there as a file."""

from __future__ import annotations

import importlib.util
import json
import sys

PACKAGE = "exporter_install"


class Sent:
    """Finds the package's modules among those that were sent."""

    def __init__(self, sources: dict) -> None:
        self.sources = {PACKAGE: sources["__init__"]}
        self.sources.update({"%s.%s" % (PACKAGE, name): text for name, text in sources.items()})

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name == PACKAGE)

    def create_module(self, spec):
        return None

    def exec_module(self, module) -> None:
        exec(compile(self.sources[module.__name__], module.__name__, "exec"), module.__dict__)


if __name__ == "__main__":
    sent = json.load(sys.stdin)
    sys.meta_path.insert(0, Sent(sent.pop("program")))
    from exporter_install.main import main

    sys.exit(main(sent))
