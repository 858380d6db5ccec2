# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give local connections and lab hosts a Python that has loaded Ansible's modules.

Ansible starts an interpreter for each module, and sends an archive with everything that the module imports. Compiling
that code takes most of a module's time, and most of the code is the same for every module. Here, one process has
already imported ansible-core's code. Each module runs as a fork of that process, with its own environment, standard
input and output. The collection's code still comes from Ansible's archive, but Python compiles it only once
(compiled_code.py).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, ClassVar, Mapping, Sequence, TextIO

from tests.integration import compiled_code
from tests.integration.warm_python import answer

ROOT = Path(__file__).resolve().parents[2]
#: Modules that ansible-core's modules import. Some releases lack some of these modules.
LOADED = [
    "ansible.module_utils.basic",
    "ansible.module_utils._internal._ansiballz._loader",
    "ansible.module_utils.facts.ansible_collector",
    "ansible.module_utils.facts.default_collectors",
    "ansible.module_utils.urls",
]


def interpreter(
    wrapper: Path,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
    also: Sequence[str] = (),
) -> Path:
    """Write a program for ansible_python_interpreter, and return its path.

    The program sets `environment` for modules. `also` lists additional packages that the modules import. If `python`
    is not the tests' own Python, it loads everything from Ansible's archive, as a host does, because Ansible is
    installed only for the tests' Python.
    """
    environment = dict(environment or {})
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    command = [python]
    if python == sys.executable:
        server = _Server.of(environment.get("LD_LIBRARY_PATH", ""), tuple(also))
        # The client needs only the standard library, so -I and -S make it start faster.
        client = Path(__file__).with_name("warm_client.py").resolve()
        command = [python, "-I", "-S", str(client), str(server.socket)]
    wrapper.write_text(f'#!/bin/sh\n{exports}exec {" ".join(map(shlex.quote, command))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


class _Server:
    """The process that has loaded the code.

    It ends when this process ends.
    """

    _started: ClassVar[dict[tuple[str, tuple[str, ...]], _Server]] = {}

    @classmethod
    def of(cls, libraries: str, also: tuple[str, ...]) -> _Server:
        """Return the server for these libraries, and start it if necessary.

        There is one server per library path, because the dynamic linker reads the path when a process starts, not
        when it forks.
        """
        if (libraries, also) not in cls._started:
            cls._started[libraries, also] = cls(libraries, also)
            atexit.register(cls._started[libraries, also].close)
        return cls._started[libraries, also]

    def __init__(self, libraries: str, also: tuple[str, ...]) -> None:
        # Do not use TemporaryDirectory: a fork of this process would remove the folder when the fork ends.
        self._folder = tempfile.mkdtemp(prefix="openfleet-warm-")
        self._maker = os.getpid()
        self.socket = Path(self._folder) / "socket"
        environment = dict(os.environ, LD_LIBRARY_PATH=libraries) if libraries else None
        with listen(str(self.socket)) as listening:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listening.fileno()), *also],
                env=environment,
                cwd=ROOT,
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
            )

    def disown(self) -> None:
        self._process.stdin.close()

    def close(self) -> None:
        if os.getpid() != self._maker:
            return
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)


def close() -> None:
    """End the processes that this process started.

    Tests need this only if this process does not end in the usual way.
    """
    for server in _Server._started.values():
        server.close()


def disown() -> None:
    """Give up the processes that the parent of this fork started.

    Each process ends when no other process has its standard input open.
    """
    for server in _Server._started.values():
        server.disown()


# --- Functions of the process that is forked ------------------------------------------------------------------------


def load(also: Sequence[str] = ()) -> None:
    """Import the LOADED modules that this ansible-core release has, and `also`."""
    for name in [*LOADED, *also]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def listen(address: str) -> socket.socket:
    """Return a listening socket at this address.

    Replace a leftover socket file without a listener.
    """
    with contextlib.suppress(FileNotFoundError):
        Path(address).unlink()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    return listening


def serve(listening: socket.socket, *until: TextIO | int, taken: bytes = b"", begin: Callable | None = None) -> None:
    """Fork for each connection until one of the `until` files ends.

    The bytes `taken` tell the client that the server has accepted its request. If `begin` has a value, `begin` sends
    them.
    """
    while True:
        ready, _, _ = select.select([listening, *until], [], [])
        if ready != [listening]:
            return
        connection, _address = listening.accept()
        if os.fork() == 0:
            listening.close()
            files = array.array("i")
            _data, ancillary, _flags, _from = connection.recvmsg(1, socket.CMSG_SPACE(3 * files.itemsize))
            for _level, _kind, content in ancillary:
                files.frombytes(content)
            connection.sendall(taken)
            answer([*files, connection.detach()], begin)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    # Modules must not find the tests.
    sys.path.pop(0)
    compiled = ROOT / ".cache" / ("compiled-%d" % os.getuid())
    with contextlib.suppress(OSError):
        compiled.mkdir(mode=0o700, parents=True, exist_ok=True)
    compiled_code.keep(str(compiled))
    load(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])), sys.stdin)
