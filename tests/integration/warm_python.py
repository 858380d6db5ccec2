# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `python -m MODULE` as a fork that has already loaded Ansible and pynvml.

Tests start modules hundreds of times, and imports take most of the time of each start. So one interpreter imports the
modules' dependencies, but not the modules themselves. Each run is a fork of this interpreter with its own environment,
standard input and output.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Mapping, Sequence

#: A request is the decimal length of a JSON text, a line feed, and the JSON text. The response is the decimal exit
#: status.
Request = Mapping[str, object]


class WarmPython:
    """Start processes from an interpreter that has loaded its modules once.

    The interpreter starts with `environment`, because the dynamic linker reads LD_LIBRARY_PATH only at the start.
    """

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).resolve()), str(theirs.fileno())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._requests = ours

    def run(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], stdin: str = ""):
        """Run a module like `python -m`, and return its subprocess.CompletedProcess."""
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "cwd": str(Path.cwd()),
        }
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    files = array.array("i", [given.fileno(), out.fileno(), err.fileno(), theirs.fileno()])
                    self._requests.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
                text = json.dumps(request).encode()
                ours.sendall(b"%d\n" % len(text) + text)
                status = ours.makefile("rb").read()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                [module, *arguments], int(status or b"-9"), out.read().decode(), err.read().decode()
            )

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


# --- Functions of the interpreter that is forked --------------------------------------------------------------------


def load() -> None:
    """Import the modules' and gpusim's dependencies that this interpreter has."""
    import pkgutil

    import ansible.module_utils.basic  # noqa: F401
    import pynvml  # noqa: F401

    from ansible_collections.openfleet.gpu.plugins import module_utils

    for found in pkgutil.walk_packages(module_utils.__path__, module_utils.__name__ + "."):
        __import__(found.name)


def serve(requests: socket.socket) -> None:
    """Fork for each request, until the other end closes."""
    while True:
        files = array.array("i")
        data, ancillary, _flags, _address = requests.recvmsg(1, socket.CMSG_SPACE(4 * files.itemsize))
        if not data:
            return
        for _level, _kind, content in ancillary:
            files.frombytes(content)
        if os.fork() == 0:
            requests.close()
            answer(list(files))
        for file in files:
            os.close(file)
        # Collect the children that have ended.
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


def answer(files: list, become: Callable | None = None) -> None:
    """Run one request in a child of this process, and send its exit status.

    The child calls `become` if it has a value, and otherwise `run`.
    """
    connection = socket.socket(fileno=files.pop())
    reader = connection.makefile("rb")
    request = json.loads(reader.read(int(reader.readline())).decode())
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        connection.close()
        (become or run)(request)
    if not _ends_before(child, connection):
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    with contextlib.suppress(OSError):
        connection.sendall(b"%d" % code)
    os._exit(0)


def _ends_before(child: int, connection: socket.socket) -> bool:
    """Wait for the child, and return False if the client disconnects first.

    Python 3.8 cannot wait for both, so with Python 3.8 the child always runs to its end.
    """
    if not hasattr(os, "pidfd_open"):
        return True
    ended = os.pidfd_open(child)
    return ended in select.select([ended, connection], [], [])[0]


def run(request: Request, begin: Callable | None = None) -> None:
    """Become the requested process, and do not return.

    The process runs `begin` if it has a value, otherwise a module, or the code on standard input.
    """
    import atexit
    import runpy
    import traceback
    import types

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    if "umask" in request:
        os.umask(request["umask"])
    sys.path[:0] = [path for path in request["environment"].get("PYTHONPATH", "").split(":") if path not in sys.path]
    sys.argv[1:] = request["arguments"]
    code = 0
    try:
        if begin:
            begin()
        elif request["module"]:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            code_given = compile(sys.stdin.buffer.read(), "<stdin>", "exec")
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(code_given, sys.modules["__main__"].__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    # Modules remove their temporary folders in exit handlers.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
