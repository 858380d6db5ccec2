# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the code on standard input to the process of warm_ansible.py.

The client exits with the code's status. The client imports little, because each module waits for it.
"""

from __future__ import annotations

import _socket
import json
import os
import sys


def run_as_fork(address: str) -> None:
    """Run the code in a fork of the process at this address.

    Then exit with the fork's status. Return if no process listens at the address.
    """
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        return
    umask = os.umask(0)
    os.umask(umask)
    # Do not import pathlib: it takes longer than all other imports together.
    request = {"module": "", "arguments": [], "environment": dict(os.environ), "cwd": os.getcwd(), "umask": umask}  # noqa: PTH109
    text = json.dumps(request).encode()
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    connection.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    connection.sendall(b"%d\n" % len(text) + text)
    # The status is a few digits and arrives in one piece.
    status = int(connection.recv(16) or b"-9")
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def main(address: str, arguments: list) -> None:
    """Run the code.

    If there are arguments, run the program in a separate interpreter.
    """
    if arguments:
        os.execv(sys.executable, [sys.executable, *arguments])
    run_as_fork(address)
    sys.exit("no process listens at %s" % address)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
