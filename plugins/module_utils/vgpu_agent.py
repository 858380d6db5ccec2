# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand out the turnstiles of GPUs as sealed memory (openfleet-vgpu-agent.service).

Every tenant of a GPU writes its turnstile. If that is a file, every tenant can truncate it, which ends all programs that have it
mapped (SIGBUS). Memory with the seal F_SEAL_SHRINK cannot be truncated. It has no name, so it is passed over a socket.

Each tenant has a socket in a folder that only its containers have mounted; on the host, its permissions are those of the tenant's
region. A connection to it is the tenant's, and nothing that a client says is read. Another socket, for every user of the host,
hands out the turnstiles of all GPUs for reading.

The memory stays in the service manager's file descriptor store (sd_notify(3), FDSTORE=1), so it outlives a restart of the agent.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import grp
import os
import re
import select
import socket
import struct
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

from . import vgpu_files
from .errors import FleetError
from .vgpu_agent_client import socket_folder
from .vgpu_host import VgpuHost
from .vgpu_model import MPS, VgpuTenant

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: For the service manager to take what it is told.
_TELL_SECONDS = 5.0
#: Seconds between two looks at the tenants.
_TICK_SECONDS = 1.0
#: Looks at which a folder may be missing before that is worth a line.
_PATIENCE = 10
#: Answers on one socket that were not read yet. Descriptors that are on their way count against the sender's limit (unix(7)),
#: so a client that reads nothing must not keep many. Further clients of the socket wait.
_MOST_UNREAD = 16
#: The same of one user, on the socket that all users share. Further clients of the user are turned away.
_MOST_UNREAD_OF_USER = 4
_BACKLOG = 512
#: Descriptors in one message; SCM_MAX_FD of Linux is 253.
_MOST_IN_MESSAGE = 64
#: By what systemd names the descriptors that it keeps. The number is that of the turnstile's layout.
_STORED = re.compile(r"turnstile-%d-(GPU-[0-9a-f-]+)\Z" % vgpu_files.REGION_VERSION)
_FIRST_DESCRIPTOR = 3
#: Since Linux 6.3, where a host may insist on it (vm.memfd_noexec); Python has no name for it.
_MFD_NOEXEC_SEAL = 8

Log = Callable[[str], None]


class Notifier:
    """What the service manager is told (sd_notify(3)); nothing where there is none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def tell(self, *lines: str, descriptor: int | None = None) -> None:
        if not self._address:
            return
        passed = [] if descriptor is None else [_rights([descriptor])]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(_TELL_SECONDS)
            connection.sendmsg(["\n".join(lines).encode()], passed, 0, self._address)


def stored(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the descriptors that the service manager has kept, with their names (sd_listen_fds_with_names(3))."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    return [(name, _FIRST_DESCRIPTOR + n) for n, name in enumerate(names[: int(environment.get("LISTEN_FDS", "0"))])]


class Turnstiles:
    """The memory of each GPU that has tenants."""

    def __init__(self, notifier: Notifier, kept: Sequence[tuple[str, int]] = ()) -> None:
        self._notifier = notifier
        self._by_gpu: dict[str, int] = {}
        for name, descriptor in kept:
            match = _STORED.match(name)
            if match and match.group(1) not in self._by_gpu and _is_turnstile(descriptor):
                os.set_inheritable(descriptor, False)
                self._by_gpu[match.group(1)] = descriptor
            else:
                self._forget(name, descriptor)

    def __contains__(self, gpu_uuid: str) -> bool:
        return gpu_uuid in self._by_gpu

    def keep_only(self, gpus: Sequence[str]) -> None:
        """Make the memory of these GPUs, and drop that of others: programs that have it mapped keep it until they end."""
        for gpu in set(self._by_gpu).difference(gpus):
            self._forget(_name(gpu), self._by_gpu.pop(gpu))
        for gpu in set(gpus).difference(self._by_gpu):
            made = self._by_gpu[gpu] = _make(gpu)
            self._notifier.tell("FDSTORE=1", "FDNAME=" + _name(gpu), descriptor=made)

    @contextlib.contextmanager
    def opened(self, gpus: Sequence[str], flags: int) -> Iterator[list[int]]:
        """Descriptors of their own for a client: locks belong to the open file, and two clients must not share one."""
        with contextlib.ExitStack() as closing:
            made = []
            for gpu in gpus:
                made.append(os.open("/proc/self/fd/%d" % self._by_gpu[gpu], flags | os.O_CLOEXEC))
                closing.callback(os.close, made[-1])
            yield made

    def _forget(self, name: str, descriptor: int) -> None:
        os.close(descriptor)
        self._notifier.tell("FDSTOREREMOVE=1", "FDNAME=" + name)


def _name(gpu_uuid: str) -> str:
    return "turnstile-%d-%s" % (vgpu_files.REGION_VERSION, gpu_uuid)


def _make(gpu_uuid: str) -> int:
    name, flags = "openfleet-vgpu-" + gpu_uuid, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError:
        descriptor = os.memfd_create(name, flags)
    # Who has a descriptor for reading must not open it for writing through /proc.
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, vgpu_files.TURNSTILE_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def _is_turnstile(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        return sealed & SEALS == SEALS and os.fstat(descriptor).st_size == vgpu_files.TURNSTILE_BYTES
    return False


@dataclass
class _Listener:
    """A socket, what it hands out, and the answers that were not read yet."""

    folder: Path
    mode: int
    group: str | None
    gpus: tuple[str, ...]
    flags: int
    most_of_user: int = _MOST_UNREAD
    listening: socket.socket | None = None
    inode: int = 0
    #: Looks since it could be made last.
    failures: int = 0
    #: By descriptor: the connection and its user.
    unread: dict[int, tuple[socket.socket, int]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return str(self.folder / vgpu_files.AGENT_SOCKET)

    def stands(self) -> bool:
        """Whether the socket is still what its path leads to: a file system may have been mounted above it, or removed."""
        with contextlib.suppress(OSError), socket_folder(self.folder) as folder:
            return self.listening is not None and os.lstat(folder + vgpu_files.AGENT_SOCKET).st_ino == self.inode
        return False

    def bind(self) -> None:
        """Listen. A client finds the old socket or this one with its permissions. Raises OSError, KeyError without the group."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            group = -1 if self.group is None else grp.getgrnam(self.group).gr_gid
            with socket_folder(self.folder) as folder:
                new = folder + vgpu_files.AGENT_SOCKET + ".new"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)  # noqa: PTH108 (a path that leads through a descriptor)
                made.bind(new)
                os.chown(new, -1, group)
                os.chmod(new, self.mode)  # noqa: PTH101
                made.listen(_BACKLOG)
                os.replace(new, folder + vgpu_files.AGENT_SOCKET)  # noqa: PTH105
                self.inode = os.lstat(folder + vgpu_files.AGENT_SOCKET).st_ino
        except BaseException:
            made.close()
            raise
        self.listening = made


class Agent:
    """Serves the tenants of the host below `root`, as its layout has them at each moment."""

    def __init__(self, root: Path, turnstiles: Turnstiles, log: Log = print) -> None:
        self._root, self._turnstiles, self._log = root, turnstiles, log
        self._tenants = VgpuHost(root=str(root))
        self._seen: object = None
        self._said: dict[object, str] = {}
        self._listeners: dict[str, _Listener] = {}
        self._by_descriptor: dict[int, _Listener] = {}
        self._epoll = select.epoll()

    def serve(self, ticked: Callable[[], None] = lambda: None) -> None:
        """Serve for ever; `ticked` is called after each look at the tenants. Raises OSError, as look does."""
        again = time.monotonic()
        while True:
            if time.monotonic() >= again:
                self.look()
                ticked()
                again = time.monotonic() + _TICK_SECONDS
            for descriptor, _events in self._epoll.poll(max(0.0, again - time.monotonic())):
                listener = self._by_descriptor.get(descriptor)
                if listener is None:
                    continue
                if descriptor in listener.unread:
                    self._end(listener, descriptor)
                else:
                    self._answer(listener)

    def look(self) -> None:
        """Follow the tenants: sockets for those that came, none for those that went.

        Raises OSError where sockets cannot be made before the service is restarted: its folder was created later, so that this
        process sees it read-only.
        """
        try:
            now = self._fingerprint()
            if now != self._seen:
                self._follow([one for one in self._tenants.tenants() if one.provider != MPS])
                self._seen = now
            self._said.pop("tenants", None)
        except (OSError, FleetError) as error:
            self._say("tenants", "the tenants cannot be read, those of before are served: %s" % error)
        for listener in self._listeners.values():
            for descriptor in list(listener.unread):
                if not _bytes_unread(listener.unread[descriptor][0]):
                    self._end(listener, descriptor)
            if not listener.stands():
                self._bind(listener)
            self._take_more(listener)

    def _fingerprint(self) -> object:
        """Something that changes when a tenant does."""
        specs = sorted(self._root.glob(vgpu_files.spec_path("*")))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_ino) for path in specs]

    def _follow(self, tenants: Sequence[VgpuTenant]) -> None:
        gpus = tuple(sorted({uuid for tenant in tenants for uuid in tenant.gpus}))
        self._turnstiles.keep_only(gpus)
        wanted = [
            _Listener(
                self._root / vgpu_files.agent_folder(tenant.name),
                vgpu_files.shared_files(tenant)[0].mode,
                tenant.group,
                tenant.gpus,
                os.O_RDWR,
            )
            for tenant in tenants
        ]
        if tenants:
            state = self._root / vgpu_files.STATE
            wanted.append(_Listener(state, 0o666, None, gpus, os.O_RDONLY, _MOST_UNREAD_OF_USER))
        by_path = {listener.path: listener for listener in wanted}
        for path in set(self._listeners) - set(by_path):
            self._drop(self._listeners.pop(path))
        for path, listener in by_path.items():
            there = self._listeners.setdefault(path, listener)
            there.gpus = listener.gpus
            if (there.mode, there.group) != (listener.mode, listener.group):
                there.mode, there.group, there.inode = listener.mode, listener.group, 0

    def _bind(self, listener: _Listener) -> None:
        if listener.listening is not None:
            self._by_descriptor.pop(listener.listening.fileno())
            listener.listening.close()
            listener.listening = None
        try:
            listener.bind()
        except (OSError, KeyError) as error:
            if getattr(error, "errno", None) == errno.EROFS:
                raise
            listener.failures += 1
            # A tenant that is being written, or taken away, has no folder for a moment.
            if listener.failures < _PATIENCE and isinstance(error, FileNotFoundError):
                return
            self._say(listener.path, "%s: it cannot be made: %s" % (listener.path, error))
            return
        self._said.pop(listener.path, None)
        listener.failures = 0
        assert listener.listening is not None
        self._by_descriptor[listener.listening.fileno()] = listener
        self._epoll.register(listener.listening, select.EPOLLIN)

    def _drop(self, listener: _Listener) -> None:
        for connection, _uid in listener.unread.values():
            self._by_descriptor.pop(connection.fileno())
            connection.close()
        if listener.listening is not None:
            self._by_descriptor.pop(listener.listening.fileno())
            if listener.stands():
                with contextlib.suppress(OSError):
                    os.unlink(listener.path)  # noqa: PTH108
            listener.listening.close()

    def _answer(self, listener: _Listener) -> None:
        """Take one connection and send what it is for. The client is not waited for."""
        assert listener.listening is not None
        try:
            connection, _address = listener.listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # As with too many open files: not again before the next look.
            self._say("accept", "%s: %s" % (listener.path, error))
            self._epoll.modify(listener.listening, 0)
            return
        connection.setblocking(False)
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if sum(other == uid for _connection, other in listener.unread.values()) >= listener.most_of_user:
            connection.close()
            return
        try:
            _send(connection, self._turnstiles, listener)
        except OSError as error:
            self._say("send", "a client of %s has no answer: %s" % (listener.path, error))
        descriptor = connection.fileno()
        listener.unread[descriptor] = (connection, uid)
        self._by_descriptor[descriptor] = listener
        # A client that has gone is always told of; what it sends is not.
        self._epoll.register(descriptor, 0)
        self._take_more(listener)

    def _end(self, listener: _Listener, descriptor: int) -> None:
        """Close a connection whose answer was read, or is gone with its client."""
        connection, _uid = listener.unread[descriptor]
        if _bytes_unread(connection):
            # The client has shut it down and can read still. It is looked at again with the tenants.
            self._epoll.unregister(descriptor)
            return
        connection.close()
        del listener.unread[descriptor], self._by_descriptor[descriptor]
        self._take_more(listener)

    def _take_more(self, listener: _Listener) -> None:
        """Take the next connection, or none while too many answers are unread."""
        if listener.listening is not None:
            full = len(listener.unread) >= _MOST_UNREAD
            self._epoll.modify(listener.listening, 0 if full else select.EPOLLIN)

    def _say(self, about: object, text: str) -> None:
        """Log it once, until it is another."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._log(text)


def _send(connection: socket.socket, turnstiles: Turnstiles, listener: _Listener) -> None:
    """Names and descriptors, and the end. Raises OSError."""
    gpus = [gpu for gpu in listener.gpus if gpu in turnstiles]
    for first in range(0, len(gpus), _MOST_IN_MESSAGE):
        some = gpus[first : first + _MOST_IN_MESSAGE]
        with turnstiles.opened(some, listener.flags) as descriptors:
            text = "".join(gpu + "\n" for gpu in some)
            connection.sendmsg([text.encode()], [_rights(descriptors)], socket.MSG_NOSIGNAL)
    connection.shutdown(socket.SHUT_WR)


def _bytes_unread(connection: socket.socket) -> int:
    """Return how much of what was sent the other side has not taken."""
    size = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, size)
    return size[0]


def _rights(descriptors: Sequence[int]) -> tuple[int, int, bytes]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes()
