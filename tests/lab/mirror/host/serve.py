# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve /srv/mirror on the loopback interface.

While the file /srv/mirror/.dies exists, only the first half of each package is sent.
"""

from __future__ import annotations

import http.server
from pathlib import Path

ROOT = "/srv/mirror"


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, directory=ROOT, **more)

    def copyfile(self, source, outputfile):
        if self.path.endswith((".deb", ".rpm")) and Path(ROOT, ".dies").exists():
            content = source.read()
            outputfile.write(content[: len(content) // 2])
            outputfile.flush()
            self.close_connection = True
            return
        super().copyfile(source, outputfile)


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
