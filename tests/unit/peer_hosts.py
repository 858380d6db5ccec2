# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start real processes with real sockets, users and programs in simulated cgroups."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

#: This program accepts connections one after the other, prints the received bytes, and answers with an authentication
#: error.
LISTENER = """
import os, socket, ssl, sys
port, uid, *tls = sys.argv[1:]
context = None
if tls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls)
listener = socket.create_server(("127.0.0.1", int(port)))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    connection.settimeout(60)
    try:
        if connection.recv(3, socket.MSG_PEEK) == b"END":
            break
        if context:
            connection = context.wrap_socket(connection, server_side=True)
        print(repr(connection.recv(65536)), flush=True)
        connection.sendall(b"HTTP/1.1 401 Unauthorized\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    except OSError as error:
        print(error, flush=True)
    connection.close()
"""


class Processes:
    """A /proc with simulated cgroups, in which all other files are the kernel's.

    `modules` are the copies of peer.py that read this folder.
    """

    def __init__(self, folder: Path, monkeypatch, *modules) -> None:
        self.folder = folder
        (folder / "self").mkdir(parents=True)
        (folder / "self/net").symlink_to("/proc/self/net")
        (folder / "self/cgroup").write_text("0::/user.slice/user-0.slice/session-1.scope\n")
        for module in modules:
            monkeypatch.setattr(module, "PROC", str(folder))

    def add(self, pid: int, cgroup: str, executable: str = "") -> None:
        process = self.folder / str(pid)
        process.mkdir(exist_ok=True)
        (process / "cgroup").write_text("0::%s\n" % cgroup)
        for name in ("fd", "status", "stat", "net"):
            if not (process / name).is_symlink():
                (process / name).symlink_to("/proc/%d/%s" % (pid, name))
        if not (process / "exe").is_symlink():
            (process / "exe").symlink_to(executable or os.readlink("/proc/%d/exe" % pid))


class Stranger:
    """A separate process that listens on a port.

    If the test runs as root, this process runs as another user.
    """

    def __init__(self, *tls: str, port: int = 0, uid: int = 65534) -> None:
        command = [sys.executable, "-c", LISTENER, str(port), str(uid), *tls]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def end(self) -> list[str]:
        """End the process and return what each connection sent, in order."""
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"END")
            return self.process.communicate()[0].splitlines()
