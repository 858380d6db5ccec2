# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide the shared memory with which a GPU's tenants take turns.

The service is openfleet-vgpu-agent.service.

Without the agent, all tenants of a GPU write to one file. Each tenant can then forge other tenants' values, or truncate
the file, which ends all programs that map it (SIGBUS). So the agent gives each tenant a separate memory page
(agent_memory.py).

Each tenant has a socket in a folder that only the tenant's containers mount. On the host, the socket has the same
permissions as the tenant's region. So every client of a socket belongs to its tenant, and the agent need not read data
from clients. Once a second, the agent copies all pages' public data into a file (agent_client.py).
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import grp
import os
import select
import socket
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Sequence

from ...errors import FleetError
from ...processes import passed_files
from ...processes.log_limit import LimitedLog
from . import files as vgpu_files
from .agent_client import ShownFile, socket_folder
from .agent_memory import SharedMemory, send
from .host import VgpuHost
from .model import MPS, VgpuTenant

#: Interval in seconds between reads of the tenants' specs.
_TICK_SECONDS = 1.0
#: If a tenant's folder is missing in this many reads in a row, the agent logs it.
_PATIENCE = 10
#: Maximum number of unread answers per socket, after which its other clients wait. Descriptors that were sent but not
#: read count against the agent's limit of open files (unix(7)), so clients must not accumulate them.
_MOST_UNREAD = 16
#: Maximum number of descriptors in all sockets' unread answers: half of the unit's LimitNOFILE. It is needed because
#: one user can connect to the sockets of all tenants without a group.
_MOST_ON_THEIR_WAY = 32768
_BACKLOG = 512
#: Maximum number of descriptors per message. A client must be able to receive this many files (agent.h).
_MOST_IN_MESSAGE = 32
#: Source of log lines that no tenant causes.
_AGENT = "the agent"

Log = Callable[[str], None]


@dataclass
class _Listener:
    """A tenant's socket and its unread answers."""

    folder: Path
    mode: int
    group: str | None
    tenant: VgpuTenant
    #: Number of descriptors in one answer.
    descriptors: int = 1
    listening: socket.socket | None = None
    inode: int = 0
    #: Failures in a row to create the socket.
    failures: int = 0
    #: Connections with unread answers, by descriptor.
    unread: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return str(self.folder / vgpu_files.AGENT_SOCKET)

    def stands(self) -> bool:
        """Return whether the socket's path still leads to this socket.

        The socket may have been removed, or a mount may hide it.
        """
        with contextlib.suppress(OSError), socket_folder(self.folder) as folder:
            return self.listening is not None and os.lstat(folder + vgpu_files.AGENT_SOCKET).st_ino == self.inode
        return False

    def bind(self) -> None:
        """Create the socket with its permissions, in place of the previous one.

        Raises OSError, or KeyError if the group does not exist.
        """
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            group = -1 if self.group is None else grp.getgrnam(self.group).gr_gid
            with socket_folder(self.folder) as folder:
                new = folder + vgpu_files.AGENT_SOCKET + ".new"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)  # noqa: PTH108 (the path goes through a descriptor)
                made.bind(new)
                os.chown(new, -1, group)
                os.chmod(new, self.mode)  # noqa: PTH101
                passed_files.refuse(made)
                made.listen(_BACKLOG)
                os.replace(new, folder + vgpu_files.AGENT_SOCKET)  # noqa: PTH105
                self.inode = os.lstat(folder + vgpu_files.AGENT_SOCKET).st_ino
        except BaseException:
            made.close()
            raise
        self.listening = made


class Agent:
    """Serve the host's current tenants. `root` is the host's root folder."""

    def __init__(self, root: Path, memory: SharedMemory, log: Log = print) -> None:
        self._root, self._memory, self._log = root, memory, LimitedLog(log)
        self._tenants = VgpuHost(root=str(root))
        self._seen: object = None
        self._logged: dict[object, str] = {}
        self._listeners: dict[str, _Listener] = {}
        self._by_descriptor: dict[int, _Listener] = {}
        self._shown = ShownFile(root)
        self._epoll = select.epoll()

    def serve(self, ticked: Callable[[], None] = lambda: None) -> None:
        """Serve forever, and call `ticked` after each read of the tenants.

        Raises OSError if `look` raises it.
        """
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
        """Create the sockets of new tenants, and remove those of removed tenants.

        Raises OSError if the service must restart to create a socket: this process can only read a folder that was
        created after the service started.
        """
        try:
            now = self._fingerprint()
            if now != self._seen:
                self._follow([one for one in self._tenants.tenants() if one.provider != MPS])
                self._seen = now
            self._logged.pop("tenants", None)
        except (OSError, FleetError) as error:
            self._say("tenants", _AGENT, "cannot read the tenants, so the earlier tenants are served: %s" % error)
        for listener in self._listeners.values():
            for descriptor in list(listener.unread):
                if not _bytes_unread(listener.unread[descriptor]):
                    self._end(listener, descriptor)
            if not listener.stands():
                self._bind(listener)
            self._take_more(listener)
        self._show()
        self._log.summarize()

    def _show(self) -> None:
        """Write the public data of all pages to the public file."""
        try:
            self._shown.write(self._memory.shown())
            self._logged.pop("show", None)
        except OSError as error:
            self._say(
                "show",
                _AGENT,
                "cannot write the public usage file, so other programs report that no agent is running: %s" % error,
            )

    def _fingerprint(self) -> object:
        """Return a value that changes when a tenant's spec changes."""
        specs = sorted(self._root.glob(vgpu_files.spec_path("*")))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_ino) for path in specs]

    def _follow(self, tenants: Sequence[VgpuTenant]) -> None:
        self._memory.follow(tenants)
        wanted = [
            _Listener(
                self._root / vgpu_files.agent_folder(tenant.key),
                vgpu_files.shared_files(tenant)[0].mode,
                tenant.group,
                tenant,
            )
            for tenant in tenants
        ]
        by_path = {listener.path: listener for listener in wanted}
        for path in set(self._listeners) - set(by_path):
            self._drop(self._listeners.pop(path))
        for path, listener in by_path.items():
            current = self._listeners.setdefault(path, listener)
            current.tenant = listener.tenant
            current.descriptors = max(1, len(self._memory.parts_for(listener.tenant)))
            if (current.mode, current.group) != (listener.mode, listener.group):
                current.mode, current.group, current.inode = listener.mode, listener.group, 0

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
            # The folder may be missing briefly, while the tenant is written or removed.
            if listener.failures < _PATIENCE and isinstance(error, FileNotFoundError):
                return
            self._say(listener.path, listener.tenant.key, "%s: cannot create the socket: %s" % (listener.path, error))
            return
        self._logged.pop(listener.path, None)
        listener.failures = 0
        if listener.listening is None:
            raise AssertionError("no socket")
        self._by_descriptor[listener.listening.fileno()] = listener
        self._epoll.register(listener.listening, select.EPOLLIN)

    def _drop(self, listener: _Listener) -> None:
        for topic in (listener.path, ("accept", listener.path), ("send", listener.path)):
            self._logged.pop(topic, None)
        for connection in listener.unread.values():
            self._by_descriptor.pop(connection.fileno())
            connection.close()
        if listener.listening is not None:
            self._by_descriptor.pop(listener.listening.fileno())
            if listener.stands():
                with contextlib.suppress(OSError):
                    os.unlink(listener.path)  # noqa: PTH108
            listener.listening.close()

    def _answer(self, listener: _Listener) -> None:
        """Accept one connection and send the answer without waiting for the client."""
        if listener.listening is None:
            raise AssertionError("no socket")
        try:
            connection, _address = listener.listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # The agent may have too many open files. It accepts connections again after the next read of the tenants.
            self._say(("accept", listener.path), listener.tenant.key, "%s: %s" % (listener.path, error))
            self._epoll.modify(listener.listening, 0)
            return
        connection.setblocking(False)
        try:
            send(connection, self._memory.parts_for(listener.tenant), _MOST_IN_MESSAGE)
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            text = "cannot answer a client of %s: %s" % (listener.path, error)
            self._say(("send", listener.path), listener.tenant.key, text)
        descriptor = connection.fileno()
        listener.unread[descriptor] = connection
        self._by_descriptor[descriptor] = listener
        # Ignore data from the client. epoll reports a disconnect even with an empty event mask.
        self._epoll.register(descriptor, 0)
        self._take_more(listener)

    def _end(self, listener: _Listener, descriptor: int) -> None:
        """Close a connection after its client read the answer or disconnected."""
        connection = listener.unread[descriptor]
        if _bytes_unread(connection):
            # The client may have closed only its sending side and still read the answer. `look` checks the connection
            # again.
            self._epoll.unregister(descriptor)
            return
        connection.close()
        del listener.unread[descriptor], self._by_descriptor[descriptor]
        self._take_more(listener)

    def _take_more(self, listener: _Listener) -> None:
        """Accept new connections, unless too many answers are unread."""
        if listener.listening is not None:
            full = len(listener.unread) >= self._most_unread(listener)
            self._epoll.modify(listener.listening, 0 if full else select.EPOLLIN)

    def _most_unread(self, listener: _Listener) -> int:
        """Return the maximum number of unread answers on the socket.

        It follows from the limit for descriptors in all sockets' unread answers.
        """
        return max(1, min(_MOST_UNREAD, _MOST_ON_THEIR_WAY // (listener.descriptors * len(self._listeners))))

    def _say(self, topic: object, source: str, text: str) -> None:
        """Log a text for a topic, unless it is the topic's last text.

        `source` is the key of the tenant whose clients can cause the text, or _AGENT.
        """
        if self._logged.get(topic) != text:
            self._logged[topic] = text
            self._log.write(source, text)


def _bytes_unread(connection: socket.socket) -> int:
    """Return the number of sent bytes that the peer has not read."""
    size = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, size)
    return size[0]
