# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand out the memory in which tenants of a GPU take turns (openfleet-vgpu-agent.service).

Without it all tenants of a GPU write one file: each can truncate it, which ends all programs that have it mapped (SIGBUS), and
forge what it says of others. The agent hands out a page for each tenant instead (agent_memory), over a socket.

Each tenant has a socket in a folder that only its containers have mounted; on the host, its permissions are those of the tenant's
region. A connection to it is the tenant's, and nothing that a client says is read. What every user of the host may know of the
pages is copied into a file once a second (agent_client).
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

#: Seconds between two looks at the tenants.
_TICK_SECONDS = 1.0
#: Looks at which a folder may be missing before that is worth a line.
_PATIENCE = 10
#: Answers on one socket that were not read yet. Descriptors that are on their way count against the sender's limit (unix(7)),
#: so a client that reads nothing must not keep many. Further clients of the socket wait.
_MOST_UNREAD = 16
#: Descriptors in the unread answers of all sockets: half of what the unit may have on their way (LimitNOFILE). Where tenants have
#: no group, one user may connect to all of their sockets.
_MOST_ON_THEIR_WAY = 32768
_BACKLOG = 512
#: Descriptors in one message, so that a program needs no room for more open files at a time (agent.h).
_MOST_IN_MESSAGE = 32
#: The source of lines that no tenant causes.
_AGENT = "the agent"

Log = Callable[[str], None]


@dataclass
class _Listener:
    """A socket, what it hands out, and the answers that were not read yet."""

    folder: Path
    mode: int
    group: str | None
    tenant: VgpuTenant
    #: In one answer.
    descriptors: int = 1
    listening: socket.socket | None = None
    inode: int = 0
    #: Looks since it could be made last.
    failures: int = 0
    #: The connections, by descriptor.
    unread: dict[int, socket.socket] = field(default_factory=dict)

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
                passed_files.refuse(made)
                made.listen(_BACKLOG)
                os.replace(new, folder + vgpu_files.AGENT_SOCKET)  # noqa: PTH105
                self.inode = os.lstat(folder + vgpu_files.AGENT_SOCKET).st_ino
        except BaseException:
            made.close()
            raise
        self.listening = made


class Agent:
    """Serves the tenants of the host below `root`, as its layout has them at each moment."""

    def __init__(self, root: Path, memory: SharedMemory, log: Log = print) -> None:
        self._root, self._memory, self._log = root, memory, LimitedLog(log)
        self._tenants = VgpuHost(root=str(root))
        self._seen: object = None
        self._said: dict[object, str] = {}
        self._listeners: dict[str, _Listener] = {}
        self._by_descriptor: dict[int, _Listener] = {}
        self._shown = ShownFile(root)
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
            self._say("tenants", _AGENT, "the tenants cannot be read, those of before are served: %s" % error)
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
        """Write what every user may know of the pages."""
        try:
            self._shown.write(self._memory.shown())
            self._said.pop("show", None)
        except OSError as error:
            self._say(
                "show",
                _AGENT,
                "tenants are shown as without the agent, for what users may see cannot be written: %s" % error,
            )

    def _fingerprint(self) -> object:
        """Something that changes when a tenant does."""
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
            there = self._listeners.setdefault(path, listener)
            there.tenant = listener.tenant
            there.descriptors = max(1, len(self._memory.parts_for(listener.tenant)))
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
            self._say(listener.path, listener.tenant.key, "%s: it cannot be made: %s" % (listener.path, error))
            return
        self._said.pop(listener.path, None)
        listener.failures = 0
        assert listener.listening is not None
        self._by_descriptor[listener.listening.fileno()] = listener
        self._epoll.register(listener.listening, select.EPOLLIN)

    def _drop(self, listener: _Listener) -> None:
        for about in (listener.path, ("accept", listener.path), ("send", listener.path)):
            self._said.pop(about, None)
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
        """Take one connection and send what it is for. The client is not waited for."""
        assert listener.listening is not None
        try:
            connection, _address = listener.listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # As with too many open files: not again before the next look.
            self._say(("accept", listener.path), listener.tenant.key, "%s: %s" % (listener.path, error))
            self._epoll.modify(listener.listening, 0)
            return
        connection.setblocking(False)
        try:
            send(connection, self._memory.parts_for(listener.tenant), _MOST_IN_MESSAGE)
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            text = "a client of %s has no answer: %s" % (listener.path, error)
            self._say(("send", listener.path), listener.tenant.key, text)
        descriptor = connection.fileno()
        listener.unread[descriptor] = connection
        self._by_descriptor[descriptor] = listener
        # A client that has gone is always told of; what it sends is not.
        self._epoll.register(descriptor, 0)
        self._take_more(listener)

    def _end(self, listener: _Listener, descriptor: int) -> None:
        """Close a connection whose answer was read, or is gone with its client."""
        connection = listener.unread[descriptor]
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
            full = len(listener.unread) >= self._most_unread(listener)
            self._epoll.modify(listener.listening, 0 if full else select.EPOLLIN)

    def _most_unread(self, listener: _Listener) -> int:
        """Return how many answers on the socket may be unread, so that those of all sockets together leave room for others."""
        return max(1, min(_MOST_UNREAD, _MOST_ON_THEIR_WAY // (listener.descriptors * len(self._listeners))))

    def _say(self, about: object, source: str, text: str) -> None:
        """Log a text once, until there is another about the same thing. `source` is the tenant whose clients can cause it."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._log.write(source, text)


def _bytes_unread(connection: socket.socket) -> int:
    """Return how much of what was sent the other side has not taken."""
    size = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, size)
    return size[0]
