# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the lease service of a simulated host on a socket."""

from __future__ import annotations

import json
import socket
import threading


class LeaseSocket:
    """The lease service of a World behind a socket."""

    def __init__(self, path, world) -> None:
        self.world, self.path = world, str(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                made, _address = self._listener.accept()
            except OSError:
                return
            with made, made.makefile("rwb") as file:
                answer = self.world.ask_as_plugin(**json.loads(file.readline()))
                file.write(json.dumps(answer).encode() + b"\n")

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
