# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand out the memory in which tenants of a GPU take turns (openfleet-vgpu-agent.service).

Without the agent, all tenants of a GPU write one file. Each tenant can truncate it, which ends all programs that map it
(SIGBUS), and can forge the values of other tenants. The agent hands out one page per tenant instead (agent_memory).

Each tenant has a socket in a folder that only its containers mount. On the host, the socket has the permissions of the tenant's
region. Every connection belongs to that tenant, and the agent reads no data from clients. Once a second it copies the
pages' public data into a file (agent_client).
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

from ... import passed_files
from ...errors import FleetError
from ...log_limit import LimitedLog
from . import files as vgpu_files
from .agent_client import ShownFile, socket_folder
from .agent_memory import SharedMemory, send
from .host import VgpuHost
from .model import MPS, VgpuTenant

#: Interval in seconds between reads of the tenants.
_TICK_SECONDS = 1.0
#: Consecutive reads in which a folder may be missing before this is logged.
_PATIENCE = 10
#: Limit of unread answers per socket. Descriptors in transit count against the sender's limit (unix(7)), so a client that
#: reads nothing must not keep many. Further clients of the socket wait.
_MOST_UNREAD = 16
#: Limit of descriptors in unread answers of all sockets: half of the unit's LimitNOFILE. One user may connect to all
#: sockets of tenants without a group.
_MOST_ON_THEIR_WAY = 32768
_BACKLOG = 512
#: Limit of descriptors per message. A client needs room for as many open files (agent.h).
_MOST_IN_MESSAGE = 32
#: Log source of lines that no tenant causes.
_AGENT = "the agent"

Log = Callable[[str], None]


@dataclass
class _Listener:
    """A tenant's socket with its unread answers."""

    folder: Path
    mode: int
    group: str | None
    tenant: VgpuTenant
    #: Number of descriptors in one answer.
    descriptors: int = 1
    listening: socket.socket | None = None
    inode: int = 0
    #: Consecutive failures to create the socket.
    failures: int = 0
    #: Connections with unread answers, by descriptor.
    unread: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return str(self.folder / vgpu_files.AGENT_SOCKET)

    def stands(self) -> bool:
        """Return whether the path still leads to this socket: it may be removed or hidden by a mount."""
        with contextlib.suppress(OSError), socket_folder(self.folder) as folder:
            return self.listening is not None and os.lstat(folder + vgpu_files.AGENT_SOCKET).st_ino == self.inode
        return False

    def bind(self) -> None:
        """Create the socket with its permissions and replace the old one. Raises OSError, KeyError without the group."""
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
    """Serve the current tenants of the host below `root`."""

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
        """Serve forever and call `ticked` after each read of the tenants. Raises OSError, as look does."""
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
        """Create sockets for new tenants and remove those of removed tenants.

        Raises OSError if sockets need a restart of the service: the folder was created later, so this process sees it
        read-only.
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
        """Write the public data of the pages."""
        try:
            self._shown.write(self._memory.shown())
            self._logged.pop("show", None)
        except OSError as error:
            self._say(
                "show",
                _AGENT,
                "cannot write the public usage file, so tenants appear without the agent: %s" % error,
            )

    def _fingerprint(self) -> object:
        """Return a value that changes when a tenant changes."""
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
            # While a tenant is being written or removed, its folder may be missing.
            if listener.failures < _PATIENCE and isinstance(error, FileNotFoundError):
                return
            self._say(listener.path, listener.tenant.key, "%s: cannot create the socket: %s" % (listener.path, error))
            return
        self._logged.pop(listener.path, None)
        listener.failures = 0
        assert listener.listening is not None
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
        """Accept one connection and send the answer, without waiting for the client."""
        assert listener.listening is not None
        try:
            connection, _address = listener.listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # For example too many open files. Accept again after the next read of the tenants.
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
        # epoll always reports a disconnected client. Data from the client is ignored.
        self._epoll.register(descriptor, 0)
        self._take_more(listener)

    def _end(self, listener: _Listener, descriptor: int) -> None:
        """Close a connection whose answer was read, or whose client disconnected."""
        connection = listener.unread[descriptor]
        if _bytes_unread(connection):
            # The client shut down writing but can still read. Check again at the next read of the tenants.
            self._epoll.unregister(descriptor)
            return
        connection.close()
        del listener.unread[descriptor], self._by_descriptor[descriptor]
        self._take_more(listener)

    def _take_more(self, listener: _Listener) -> None:
        """Accept connections again unless too many answers are unread."""
        if listener.listening is not None:
            full = len(listener.unread) >= self._most_unread(listener)
            self._epoll.modify(listener.listening, 0 if full else select.EPOLLIN)

    def _most_unread(self, listener: _Listener) -> int:
        """Return the limit of unread answers on the socket, which keeps the sum over all sockets bounded."""
        return max(1, min(_MOST_UNREAD, _MOST_ON_THEIR_WAY // (listener.descriptors * len(self._listeners))))

    def _say(self, topic: object, source: str, text: str) -> None:
        """Log a text once per topic until the text changes. `source` is the tenant whose clients can cause it."""
        if self._logged.get(topic) != text:
            self._logged[topic] = text
            self._log.write(source, text)


def _bytes_unread(connection: socket.socket) -> int:
    """Return the number of sent bytes that the peer has not read."""
    size = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, size)
    return size[0]
