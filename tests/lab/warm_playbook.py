# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-playbook as a fork of a process that has already loaded it.

This saves most of a second of CPU time for each run. The first run of a leg loads Ansible as usual, and leaves a fork
of itself that has not started a playbook. Later runs with the same settings are forks of that process. The settings
include everything that Ansible reads while it loads: its configuration, the environment variables behind it, the
folder, the user and the namespaces. The process ends when the process that started the first run ends. Benchmarks and
`make demo` run without it.

Modules on the controller are also forks (warm_ansible.py). Modules of local connections are forks if the inventory sets
their interpreter.

A test that inspects or kills the processes of a run needs the real program. It sets PYTHONUNBUFFERED, also because it
reads the output of the run.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

#: This folder belongs to the current user alone.
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / ("warm-playbook-%d" % os.getuid())
#: The command for the Python that runs the tests.
COMMAND = (sys.executable, str(Path(__file__).resolve()))
#: The process sends this byte before it begins a run.
TAKEN = b"+"
#: Prefixes of environment variables that Ansible, Python or the dynamic linker read only when they start.
AT_START = (
    "ANSIBLE_",
    "_ANSIBLE",
    "PYTHON",
    "LANG",
    "LC_",
    "LD_",
    "NO_COLOR",
    "TERM",
    "COLUMNS",
    "HOME",
    "USER",
    "TZ",
    "XDG_",
)
#: Module archives are removed if they are unused for this time. They must outlive the process, because runs of other
#: processes may still use them.
PAYLOADS_SECONDS = 24 * 3600
#: Modules that every run loads in addition to ansible-playbook. Some releases of Ansible lack some of these modules.
LOADED = [
    "ansible.executor.playbook_executor",
    "ansible.plugins.action.normal",
    "ansible.plugins.callback.default",
    "ansible.plugins.connection.local",
    "ansible.plugins.filter.core",
    "ansible.plugins.inventory.yaml",
    "ansible.plugins.strategy.linear",
    "ansible.plugins.test.core",
]


def settings() -> list[object]:
    """Return the settings of a run. Runs with equal settings can share one process."""
    said = Path(os.environ.get("ANSIBLE_CONFIG", ""))
    files = [
        said,
        said / "ansible.cfg",
        Path("ansible.cfg"),
        Path("~/.ansible.cfg").expanduser(),
        Path("/etc/ansible/ansible.cfg"),
    ]
    found = []
    for file in files:
        with suppress(OSError):
            status = file.stat()
            found.append((str(file), status.st_mtime_ns, status.st_size, status.st_ino))
    return [
        sys.executable,
        sorted(item for item in os.environ.items() if item[0].startswith(AT_START)),
        str(Path.cwd()),
        found,
        os.getuid(),
        os.getgid(),
        sorted(os.getgroups()),
        [os.isatty(number) for number in (0, 1, 2)],
        sorted(str(space.readlink()) for space in Path("/proc/self/ns").iterdir()),
    ]


def address() -> Path:
    """Return the path of the socket for runs with the current settings."""
    return FOLDER / hashlib.sha256(repr(settings()).encode()).hexdigest()[:16]


def leave_server(place: Path) -> None:
    """Fork the process that forks itself for later runs, unless it exists already."""
    lock = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return
    # The forked process ends together with the process that started this run: pytest or molecule.
    maker = os.pidfd_open(os.getppid())
    sys.stdout.flush()
    sys.stderr.flush()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        os.close(lock)
        os.close(maker)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    # This process holds the lock until it ends.
    keep = sorted((lock, maker))
    for first, last in zip([3, *(number + 1 for number in keep)], [*keep, 65536]):
        os.closerange(first, last)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    remove_payloads()
    # This folder belongs to the first run, which also removes it.
    atexit.unregister(importlib.import_module("ansible.utils.path").cleanup_tmp_file)
    try:
        warm_ansible.interpreter(interpreter(place))
        warm_ansible.serve(warm_ansible.listen(short(place)), maker, taken=TAKEN, begin=lambda run: begin(run, place))
        place.unlink()
        warm_ansible.close()
    finally:
        os._exit(0)


def payloads(place: Path, collections: list[str]) -> Path:
    """Return the folder with the module archives for the collection's current code.

    Ansible sends these archives to hosts, and keeps them only for one run. To build the archive of a module with many
    imports takes a second of CPU time.
    """
    # The virtual environment may have been recreated with other releases.
    seen = hashlib.sha256(b"%d" % Path(sys.prefix, "pyvenv.cfg").stat().st_mtime_ns)
    for path in collections:
        for folder, folders, files in os.walk(f"{path}/ansible_collections/openfleet/gpu/plugins"):
            folders[:] = sorted(one for one in folders if one != "__pycache__")
            for file in sorted(files):
                with suppress(FileNotFoundError):
                    status = Path(folder, file).stat()
                    seen.update(b"%s %d %d\n" % (os.fsencode(f"{folder}/{file}"), status.st_mtime_ns, status.st_size))
    found = Path(f"{place}.payloads-{seen.hexdigest()[:16]}")
    found.mkdir(mode=0o700, exist_ok=True)
    os.utime(found)
    return found


def remove_payloads() -> None:
    """Remove module archives that no run has used recently."""
    for folder in FOLDER.glob("*.payloads-*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > PAYLOADS_SECONDS:
                shutil.rmtree(folder)


def interpreter(place: Path) -> Path:
    """Return the interpreter for modules on the controller.

    Ansible would run them with its own Python by default.
    """
    return Path(f"{place}.python")


def short(place: Path) -> str:
    """Return a path of the socket with fewer than 108 characters.

    The path is valid as long as this process runs.
    """
    return f"/proc/self/fd/{os.open(place.parent, os.O_PATH | os.O_CLOEXEC)}/{place.name}"


def run_as_fork(place: Path) -> int | None:
    """Let the process at this address run the playbook, and return the exit status.

    Returns None if no process accepts the run.
    """
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "module": "",
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "cwd": str(Path.cwd()),
        "umask": umask,
    }
    text = json.dumps(request).encode()
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(short(place))
        socket.send_fds(connection, [b"."], [0, 1, 2])
        connection.sendall(b"%d\n" % len(text) + text)
        if connection.recv(len(TAKEN)) != TAKEN:
            return None
    except OSError:
        return None
    # The status is a few digits and arrives in one piece.
    return int(connection.recv(16) or b"-9")


def begin(request: dict, place: Path) -> None:
    """Become a run of ansible-playbook, and do not return."""

    def playbook() -> None:
        warm_ansible.disown()
        sys.executable = str(interpreter(place))
        # The forked run has its own folder, and removes it at the end.
        constants = importlib.import_module("ansible.constants")
        constants.DEFAULT_LOCAL_TMP = constants.config.get_config_value("DEFAULT_LOCAL_TMP", variables=vars(constants))
        # Older releases lock archives only among the processes of one run.
        if "ansible._internal._locking" in sys.modules:
            kept = payloads(place, constants.COLLECTIONS_PATHS)
            Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(kept)
        sys.exit(importlib.import_module("ansible.cli.playbook").main())

    warm_python.run(request, playbook)


def main() -> None:
    real = Path(sys.executable).with_name("ansible-playbook")
    if "PYTHONUNBUFFERED" in os.environ or not hasattr(os, "pidfd_open"):
        os.execv(sys.executable, [sys.executable, str(real), *sys.argv[1:]])
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = address()
    status = run_as_fork(place)
    if status is not None and status < 0:
        os.kill(os.getpid(), -status)
    if status is not None:
        os._exit(status)
    # Set the arguments as the real program does.
    sys.argv[0] = str(real)
    playbook = importlib.import_module("ansible.cli.playbook")
    for name in LOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    if threading.active_count() == 1:
        leave_server(place)
    sys.exit(playbook.main())


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from tests.integration import warm_ansible, warm_python

    sys.path[0] = str(Path(sys.executable).parent)
    main()
