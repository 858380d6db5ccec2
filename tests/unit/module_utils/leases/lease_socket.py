# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the requests of lease clients on a socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading


class LeaseSocket:
    """A lease service on a socket, which serves one connection after the other.

    `answer` is called with the values of each request, and returns the answer. None ends the connection without an
    answer.
    """

    def __init__(self, path, answer) -> None:
        self.path, self._answer = str(path), answer
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
                # The socket was closed, so the thread ends.
                return
            # A client may end before it has received its answer.
            with made, contextlib.suppress(BrokenPipeError, ConnectionResetError), made.makefile("rwb") as file:
                answer = self._answer(**json.loads(file.readline()))
                if answer is not None:
                    file.write(json.dumps(answer).encode() + b"\n")

    def close(self):
        # Closing the socket would not wake the thread, so shut down the socket first.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
