# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the memory that a GPU's tenants share: pages and terms.

Each tenant has a page, which only this tenant can write and the others can read (`struct seat` of turnstile.h in the
role vgpu_limiter). The terms have each seat's tenant, share, policy and priority. Only the agent can write the terms,
and all tenants can read them.

The memory is sealed, so that no tenant can truncate it. Other tenants get a read-only descriptor. Root in a container
could reopen this descriptor for writing through /proc, whatever the file mode is. From Linux 6.0 on, the memory is
therefore immutable: processes without CAP_LINUX_IMMUTABLE cannot open it for writing. The tenant's own descriptor stays
writable, because it was opened before.

systemd keeps the descriptors (sd_notify(3), FDSTORE=1), so the memory survives a restart of the agent.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import socket
import struct
from typing import Mapping, Sequence

from ...frozen import frozen
from . import files as vgpu_files
from .agent_client import SHOWN_BYTES, ShownSeat
from .model import POLICIES, SEATS, VgpuTenant

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: Timeout in seconds for a message to systemd.
_TELL_SECONDS = 5.0
#: Names of the descriptors that systemd keeps. The number in a name is the memory format's version.
_SEAT = re.compile(r"seat-%d-(GPU-[0-9a-f-]{36})-(.+)\Z" % vgpu_files.REGION_VERSION, re.DOTALL)
_TERMS = re.compile(r"terms-%d-(GPU-[0-9a-f-]{36})\Z" % vgpu_files.REGION_VERSION)
_FIRST_DESCRIPTOR = 3
#: MFD_NOEXEC_SEAL, which hosts with Linux 6.3 or newer may require (vm.memfd_noexec) and Python does not define.
_MFD_NOEXEC_SEAL = 8
#: From linux/fs.h: _IOR('f', 1, long), _IOW('f', 2, long) and FS_IMMUTABLE_FL.
_GET_FLAGS, _SET_FLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10
#: struct turnstile_terms: a change counter, then each seat's tenant, percentage, policy and priority.
_CHANGES, _TERMS_HEADER, _TERMS_SEAT = struct.Struct("=Q"), 64, struct.Struct("=64sIIi4x")


class Notifier:
    """Send messages to systemd (sd_notify(3)), if it started this process."""

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
    """Return (name, descriptor) for each descriptor that systemd kept.

    See sd_listen_fds_with_names(3).
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    return [(name, _FIRST_DESCRIPTOR + n) for n, name in enumerate(names[: int(environment.get("LISTEN_FDS", "0"))])]


@frozen
class Memory:
    """Sealed memory, with a writable and a read-only descriptor.

    `immutable` is true if the read-only descriptor cannot be reopened for writing.
    """

    writable: int
    readable: int
    immutable: bool

    @classmethod
    def adopt(cls, descriptor: int, size: int) -> Memory:
        """Return the memory behind a descriptor from systemd.

        Raises OSError if the memory is not sealed or does not have `size` bytes.
        """
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(descriptor).st_size != size:
            raise OSError("descriptor %d is not sealed memory of %d bytes" % (descriptor, size))
        os.set_inheritable(descriptor, False)
        # Open without blocking, because a tenant may hold a lease on the file (fcntl(2)).
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return cls(descriptor, os.open("/proc/self/fd/%d" % descriptor, flags), _make_immutable(descriptor))

    @classmethod
    def make(cls, name: str, size: int) -> Memory:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            descriptor = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
        except OSError:
            descriptor = os.memfd_create(name, flags)
        # A process with a read-only descriptor must not be able to reopen it for writing in /proc.
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        return cls.adopt(descriptor, size)

    def close(self) -> None:
        os.close(self.writable)
        os.close(self.readable)


def _make_immutable(descriptor: int) -> bool:
    """Make memory immutable.

    Returns False if the kernel does not support this or this process lacks the privilege.
    """
    try:
        flags = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))[0]
        if not flags & _IMMUTABLE:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", flags | _IMMUTABLE))
    except OSError:
        return False
    return True


@frozen
class Part:
    """A line in an answer, with its descriptor.

    agent.h in the role vgpu_limiter defines the format.
    """

    line: str
    descriptor: int


class SharedMemory:
    """The shared memory of each GPU with tenants."""

    def __init__(self, notifier: Notifier, kept: Sequence[tuple[str, int]] = ()) -> None:
        self._notifier = notifier
        #: Memory by systemd's name for it.
        self._memory: dict[str, Memory] = {}
        #: The tenant on each seat, by GPU UUID.
        self._seated: dict[str, dict[int, VgpuTenant]] = {}
        for name, descriptor in kept:
            size = self._size(name)
            try:
                if not size or name in self._memory:
                    raise OSError("descriptor %d is not from this release" % descriptor)
                self._memory[name] = Memory.adopt(descriptor, size)
            except OSError:
                os.close(descriptor)
                self._notifier.tell("FDSTOREREMOVE=1", "FDNAME=" + name)

    @staticmethod
    def _size(name: str) -> int:
        if _SEAT.match(name):
            return vgpu_files.SEAT_PAGE_BYTES
        return vgpu_files.TERMS_BYTES if _TERMS.match(name) else 0

    def follow(self, tenants: Sequence[VgpuTenant]) -> None:
        """Create these tenants' memory, and drop all other memory.

        Running programs keep the memory that they have mapped.
        """
        seated: dict[str, dict[int, VgpuTenant]] = {}
        for tenant in tenants:
            for seat in tenant.seats:
                seated.setdefault(seat.gpu_uuid, {})[seat.seat] = tenant
        wanted = {_seat_name(uuid, tenant.key) for tenant in tenants for uuid in tenant.gpus}
        wanted.update(_terms_name(uuid) for uuid in seated)
        for name in set(self._memory).difference(wanted):
            self._memory.pop(name).close()
            self._notifier.tell("FDSTOREREMOVE=1", "FDNAME=" + name)
        for name in sorted(wanted.difference(self._memory)):
            made = self._memory[name] = Memory.make("openfleet-vgpu-" + name, self._size(name))
            self._notifier.tell("FDSTORE=1", "FDNAME=" + name, descriptor=made.writable)
        self._seated = seated
        # Write the terms last: when they change, programs request the memory again, so it must be complete.
        for uuid, seats in seated.items():
            _write_terms(self._memory[_terms_name(uuid)].writable, seats)

    def parts_for(self, tenant: VgpuTenant) -> list[Part]:
        """Return the answer to a tenant.

        For each of the tenant's GPUs, it has the tenant's writable page, the terms, and other tenants' read-only pages.
        """
        parts: list[Part] = []
        for seat in tenant.seats:
            own = self._memory[_seat_name(seat.gpu_uuid, tenant.key)]
            parts.append(Part("%s own %d" % (seat.gpu_uuid, seat.seat), own.writable))
            parts += self._to_read(seat.gpu_uuid, tenant.key)
        return parts

    def shown(self) -> list[ShownSeat]:
        """Return the current public data of each page."""
        return [
            ShownSeat(uuid, number, self._is_immutable(uuid), os.pread(page.readable, SHOWN_BYTES, 0))
            for uuid in sorted(self._seated)
            for number, page in sorted(self._pages(uuid).items())
        ]

    def _pages(self, uuid: str) -> dict[int, Memory]:
        return {number: self._memory[_seat_name(uuid, tenant.key)] for number, tenant in self._seated[uuid].items()}

    def _is_immutable(self, uuid: str) -> bool:
        return self._memory[_terms_name(uuid)].immutable and all(page.immutable for page in self._pages(uuid).values())

    def _to_read(self, uuid: str, except_key: str) -> list[Part]:
        pages = self._pages(uuid)
        parts = [Part("%s terms %d" % (uuid, self._is_immutable(uuid)), self._memory[_terms_name(uuid)].readable)]
        for number, tenant in sorted(self._seated[uuid].items()):
            if tenant.key != except_key:
                parts.append(Part("%s seat %d" % (uuid, number), pages[number].readable))
        return parts


def _seat_name(gpu_uuid: str, key: str) -> str:
    return "seat-%d-%s-%s" % (vgpu_files.REGION_VERSION, gpu_uuid, key)


def _terms_name(gpu_uuid: str) -> str:
    return "terms-%d-%s" % (vgpu_files.REGION_VERSION, gpu_uuid)


def _write_terms(descriptor: int, seats: Mapping[int, VgpuTenant]) -> None:
    """Write all seats' terms, and the change counter last."""
    free = bytes(_TERMS_SEAT.size)
    table = b"".join(_seat_terms(seats[number]) if number in seats else free for number in range(SEATS))
    if os.pread(descriptor, len(table), _TERMS_HEADER) == table:
        return
    (changes,) = _CHANGES.unpack(os.pread(descriptor, _CHANGES.size, 0))
    os.pwrite(descriptor, table, _TERMS_HEADER)
    os.pwrite(descriptor, _CHANGES.pack(changes + 1), 0)


def _seat_terms(tenant: VgpuTenant) -> bytes:
    policy = POLICIES.index(tenant.policy)
    return _TERMS_SEAT.pack(tenant.key.encode(), tenant.sm_percent, policy, tenant.priority)


def _rights(descriptors: Sequence[int]) -> tuple[int, int, bytes]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes()


def send(connection: socket.socket, parts: Sequence[Part], most: int) -> None:
    """Send lines with their descriptors, at most `most` per message.

    Raises OSError.
    """
    for first in range(0, len(parts), most):
        some = parts[first : first + most]
        text = "".join(part.line + "\n" for part in some)
        rights = _rights([part.descriptor for part in some])
        connection.sendmsg([text.encode()], [rights], socket.MSG_NOSIGNAL)
