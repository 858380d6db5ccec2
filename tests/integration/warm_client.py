# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the code on standard input to the process of warm_ansible.py, and end as it ends. Imports little: each module waits."""

from __future__ import annotations

import array
import json
import os
import socket
import sys


def main(address: str, arguments: list) -> None:
    """Run the code; a program with arguments of its own runs under an interpreter of its own."""
    if arguments:
        os.execv(sys.executable, [sys.executable, *arguments])
    # Without pathlib, which takes longer to import than all of the rest.
    request = {"module": "", "arguments": [], "environment": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
    text = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    connection.sendall(b"%d\n" % len(text) + text)
    status = int(connection.makefile("rb").read() or b"-9")
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
