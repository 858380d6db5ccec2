# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the embedded exporter with very many clients.

The tests check the exporter's threads, and which clients it serves.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

#: The limit that docs/dcgm_exporter.md documents.
MOST_OF_ADDRESS = 8


def test_one_address_gets_a_limited_number_of_threads(host, start):
    """Limit one address's threads.

    Each silent client from this address occupies a thread until its timeout.
    """
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start()
    before = threads(exporter)
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(("127.0.0.1", exporter.port))) for _one in range(40)]
        for one in silent[MOST_OF_ADDRESS:]:
            one.settimeout(60)
            assert one.recv(1) == b""
        assert threads(exporter) <= before + MOST_OF_ADDRESS
    # After the silent clients disconnect and their threads end, the exporter serves the next client again.
    deadline = time.monotonic() + 60
    while True:
        try:
            assert exporter.get()[0] == 200
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def threads(exporter) -> int:
    return len(list(Path("/proc/%d/task" % exporter.process.pid).iterdir()))
