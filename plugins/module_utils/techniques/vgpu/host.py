# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the tenants of a host: their files; and say whose processes are theirs.

What the files are is in `files`. The library that holds processes to them comes with the role vgpu_limiter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Mapping, Sequence

from ... import durable, systemd
from ...command import Run, ask, run_tool
from ...errors import ApplyError, Problem
from ...file_worker import memory_or_none, one_look
from ...holders.model import UNKNOWN
from ...model import Gpu, Holder, Host
from . import dmem as vgpu_dmem
from . import files as vgpu_files
from .agent_client import handed_out
from .identity import Identities
from .model import DMEM, NOT_ISOLATED, READ_ONLY, SEALED, SETTINGS, STATE, TENANTS, VgpuName, VgpuSeen, VgpuTenant
from .observe import Tenants

#: For a look at the names that processes have, which happens under the host's lock.
_NAMES_SECONDS = 20.0


class VgpuHost(Tenants):
    """The tenants of this host, to look at and to change. `run` runs its tools, `gpus` are those that there are.

    Processes are those of `proc`, wherever the root is.

    Who calls what changes something holds the lock of the state directory.
    """

    def __init__(
        self, gpus: Sequence[Gpu] = (), root: str | None = None, run: Run = run_tool, proc: str = "/proc"
    ) -> None:
        super().__init__(root)
        self._run, self._proc = run, Path(proc)
        self._regions = vgpu_dmem.regions(self._root, gpus)
        #: The host that was observed last, when its look ends, and the names that its processes have by pid.
        self._look_at: tuple[Host, float, dict[int, set[str] | None]] | None = None

    # --- looking ----------------------------------------------------------------------------------------------------

    def available(self) -> Problem | None:
        """What is missing for a tenant to be held to anything; None where nothing is."""
        if (self._root / vgpu_files.LIBRARY).exists():
            return None
        return Problem(
            "/" + vgpu_files.LIBRARY,
            "it is not installed, and no tenant can be held to a quota without it",
            "Install it with the role openfleet.gpu.vgpu_limiter.",
        )

    def group_problem(self, tenant: VgpuTenant) -> Problem | None:
        """Return why the tenant's group cannot be used on this host; None where it can."""
        if tenant.group is None or _gid(tenant.group) is not None:
            return None
        return Problem(
            "the group %s" % tenant.group,
            "this host has no group %s" % tenant.group,
            "Create it (groupadd --system %s), name another, or take group away." % tenant.group,
        )

    @property
    def dmem(self) -> frozenset[str]:
        """UUIDs of the GPUs whose memory the kernel bounds."""
        return frozenset(self._regions)

    def observe(self) -> tuple[VgpuSeen, ...]:
        """Every tenant that has files of this collection here, by name. Raises ApplyError for files that cannot be read."""
        try:
            tenants = self.tenants()
        except ApplyError as error:
            # Nothing changes by looking.
            error.outcome = "old"
            raise
        shared = durable.differing(self._root, self._shared(tenants))
        handed = handed_out(self._root) if any(tenant.has_neighbours(tenants) for tenant in tenants) else {}
        renamed = [name for tenant in tenants if tenant.aliases for name in tenant.names]
        in_use = self.names_in_use(renamed) if renamed else ()
        found = [self._look(tenant, shared, in_use) for tenant in tenants]
        return tuple(
            dataclasses.replace(seen, isolation=_isolation(handed, seen.tenant))
            if seen.tenant.has_neighbours(tenants)
            else seen
            for seen in found
        )

    def _look(self, tenant: VgpuTenant, shared: Sequence[str], in_use: Sequence[VgpuName]) -> VgpuSeen:
        outdated = {*shared, *durable.differing(self._root, vgpu_files.files(tenant, self._driver))}
        outdated.update(file.path for file in vgpu_files.shared_files(tenant) if not self._is_right(file))
        if not (self._root / vgpu_files.agent_folder(tenant.key)).is_dir():
            outdated.add(vgpu_files.agent_folder(tenant.key))
        if (self._root / vgpu_files.alias_path(tenant.name)).exists():
            outdated.add(vgpu_files.alias_path(tenant.name))
        if tenant.provider == DMEM:
            said = vgpu_dmem.limits(self._root, tenant.key)
            if any(said.get(region) != limit for region, limit in vgpu_dmem.wanted(tenant, self._regions).items()):
                outdated.add("dmem.max")
        own = tuple(used for used in in_use if tenant.aliases and used.name in tenant.names)
        return dataclasses.replace(self.look(tenant), outdated=tuple(sorted(outdated)), names_in_use=own)

    def processes(self, host: Host, name: str, gpu_uuid: str) -> tuple[Holder, ...]:
        """Return the holders of the GPU that are processes of the tenant, and what cannot be determined.

        All looks at one observation of a host end at one deadline, for a user may have very many processes with very many mounts.
        A process that had no turn by then may be the tenant's: it is in the way, and is not ended.
        """
        gpu = next((gpu for gpu in host.gpus if gpu.uuid == gpu_uuid), None)
        who = [holder for holder in (gpu.held_by if gpu is not None else ()) if not holder.watches]
        names = self._names_at(host, [holder.pid for holder in who if holder.pid is not None])
        found = []
        for holder in who:
            if holder.kind == UNKNOWN or (holder.pid is not None and name in (names.get(holder.pid, {name}) or ())):
                late = holder.kind != UNKNOWN and holder.pid not in names
                found.append(_not_looked_at(holder) if late else holder)
        return tuple(found)

    def _names_at(self, host: Host, pids: Sequence[int]) -> dict[int, set[str] | None]:
        """Return the names of the processes, as `names_of` does; those without a turn are left out."""
        if self._look_at is None or self._look_at[0] is not host:
            self._look_at = (host, time.monotonic() + _NAMES_SECONDS, {})
        _host, deadline, names = self._look_at
        with one_look(deadline):
            for pid in pids:
                if pid not in names and time.monotonic() <= deadline:
                    names[pid] = self.names_of(pid)
        return names

    def names_in_use(self, names: Sequence[str]) -> tuple[VgpuName, ...]:
        """Return which of the names processes have, whether they use a GPU or not; with the processes, in the names' order.

        The look ends at a deadline, for a user may run very many processes and mount very much. A process that had no turn by
        then, or did not answer, may have any name.
        """
        pids: dict[str, list[int]] = {name: [] for name in names}
        deadline = time.monotonic() + _NAMES_SECONDS
        with one_look(deadline):
            for pid in sorted(int(path.name) for path in self._proc.glob("[0-9]*")):
                late = time.monotonic() > deadline
                found = None if late else self.names_of(pid)
                for name in names if found is None else found.intersection(names):
                    pids[name].append(pid)
                if late:
                    break
        return tuple(VgpuName(name, tuple(pids[name])) for name in names if pids[name])

    def names_of(self, pid: int) -> set[str] | None:
        """Return the names by which a process is a tenant's (`identity`). None where it does not answer, and may have any."""
        return Identities(self._root, str(self._proc), memory_or_none).names_of(pid)

    # --- changing ---------------------------------------------------------------------------------------------------

    def write(self, tenant: VgpuTenant) -> None:
        """Make the tenant what is wanted: all that is missing or differs. Processes of it heed a new quota. Raises ApplyError."""
        problems = [vgpu_files.name_problem(name) for name in tenant.names]
        problem = next(filter(None, problems), None) or self.group_problem(tenant)
        if problem:
            raise ApplyError(problem.where, problem.problem, problem.cure)
        files = vgpu_files.files(tenant, self._driver)
        self._end_names(tenant)
        # The spec first, so that whatever follows is known to be this tenant's.
        spec = vgpu_files.spec_path(tenant.key)
        self._write({spec: files.pop(spec)})
        # An earlier name may be the tenant's name again.
        self._remove(vgpu_files.alias_path(tenant.name))
        if tenant.provider == DMEM:
            vgpu_dmem.bound(self._root, self._run, tenant, self._regions)
        tenants = self.tenants()
        folder = vgpu_files.limited_folder(tenants)
        changed = folder.unit_path in self._write(self._shared(tenants))
        if self._mounts:
            # Regions that processes may have mapped are not hidden below it: a host that has some gets it at its next boot.
            in_use = any((self._root / TENANTS).glob("*/region.*"))
            folder.mount(self._root, self._mount_systemctl, changed, in_use)
        self._make_shared_files(tenant)
        durable.make_folder(self._root / vgpu_files.agent_folder(tenant.key))
        drop_ins = durable.differing(
            self._root, {path: files[path] for path in map(vgpu_files.drop_in_path, tenant.names)}
        )
        self._write(files)
        if drop_ins:
            self._read_units_anew()
        if tenant.provider != DMEM:
            vgpu_dmem.unbound(self._root, self._run, tenant.key)
            for name in tenant.names:
                self._remove(vgpu_files.slice_path(name))
        self._forget_turnstiles(tenants)

    def _end_names(self, tenant: VgpuTenant) -> None:
        """Take away the names that the tenant has and shall not have, while its spec still says that they are its names."""
        spec = self._root / vgpu_files.spec_path(tenant.key)
        before = next((one for one in self.tenants() if one.key == tenant.key), None) if spec.exists() else None
        ended = [name for name in before.names if name not in tenant.names] if before is not None else []
        try:
            for name in ended:
                self._forget_name(name)
        except OSError as error:
            cure = "Remove it by hand, as root, and run again."
            raise ApplyError(str(error.filename or tenant.name), "it cannot be removed: %s" % error, cure) from error
        if ended:
            self._read_units_anew()

    def _forget_name(self, name: str) -> None:
        """Take away what makes programs a tenant's under this name. Raises OSError.

        The spec of a tenant whose key it is stays, and so does the folder around it.
        """
        durable.remove(self._root / vgpu_files.cdi_path(name))
        folder, spec = self._root / vgpu_files.folder(name), Path(vgpu_files.spec_path(name)).name
        for path in sorted(folder.glob("*")):
            if not path.name.startswith(spec):
                _unlink(path)
        _remove_empty(folder)

    def forget(self, name: str) -> None:
        """Take away all that there is of a tenant, and with the last one what all share. Raises ApplyError."""
        tenant = next((tenant for tenant in self.tenants() if tenant.name == name), None)
        if tenant is None:
            # Its spec could not be written, and nothing comes before that.
            _remove_empty(self._root / vgpu_files.folder(name))
            return
        vgpu_dmem.unbound(self._root, self._run, tenant.key)
        try:
            for each in tenant.names:
                self._forget_name(each)
            _remove_folder(self._root / TENANTS / tenant.key)
            _remove_folder(self._root / vgpu_files.agent_folder(tenant.key))
            durable.remove(self._root / vgpu_files.spec_path(tenant.key))
            _remove_empty(self._root / vgpu_files.folder(tenant.key))
            tenants = self.tenants()
            self._forget_turnstiles(tenants)
            if tenants:
                self._write(self._shared(tenants))
            else:
                self._forget_shared()
            self._read_units_anew()
        except OSError as error:
            cure = "Remove it by hand, as root, and run again."
            raise ApplyError(str(error.filename or name), "it cannot be removed: %s" % error, cure) from error

    def _forget_shared(self) -> None:
        durable.remove(self._root / vgpu_files.TMPFILES_PATH)
        folder = vgpu_files.limited_folder(())
        if self._mounts:
            folder.unmount(self._root, self._mount_systemctl)
        durable.remove(self._root / folder.unit_path)
        with contextlib.suppress(OSError):
            (self._root / vgpu_files.SHOWN).unlink()
        for folder in (TENANTS, vgpu_files.GPUS, vgpu_files.AGENT, STATE, SETTINGS):
            for path in (self._root / folder, (self._root / folder).parent):
                # Not where something of others is in it.
                with contextlib.suppress(OSError):
                    path.rmdir()

    def _forget_turnstiles(self, tenants: Sequence[VgpuTenant]) -> None:
        """Of GPUs that no tenant has any more. Who still has one open keeps it until he ends."""
        used = {self._root / vgpu_files.turnstile_path(uuid) for tenant in tenants for uuid in tenant.gpus}
        for path in set((self._root / vgpu_files.GPUS).glob("*")) - used:
            _remove_folder(path)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    # --- parts of it ------------------------------------------------------------------------------------------------

    @property
    def _driver(self) -> str | None:
        """Path below the root of the driver's libcuda.so.1, in front of which containers get the front; None: they get none."""
        if not (self._root / vgpu_files.FRONT).exists():
            return None
        return next((path for path in vgpu_files.DRIVERS if (self._root / path).exists()), None)

    def _shared(self, tenants: Sequence[VgpuTenant]) -> dict[str, str]:
        folder = vgpu_files.limited_folder(tenants)
        return {vgpu_files.TMPFILES_PATH: vgpu_files.tmpfiles(tenants), folder.unit_path: folder.unit_text}

    def _write(self, files: dict[str, str]) -> list[str]:
        """Write the files that differ, and return their paths below the root."""
        differing = durable.write_differing(self._root, files)
        written = [self._root / path for path in differing]
        if written and (self._root / "sys/fs/selinux/enforce").exists():
            # What containers may read is said by the host's rules for the path.
            with contextlib.suppress(FileNotFoundError):
                ask(self._run, ["restorecon", *sorted({str(each) for path in written for each in (path.parent, path)})])
        return differing

    @property
    def _mounts(self) -> bool:
        """Whether the tmpfs can be mounted: not below a root of tests, nor without systemd."""
        return self._root == Path("/") and systemd.booted(self._root)

    def _mount_systemctl(self, arguments: Sequence[str]) -> None:
        self._systemctl(arguments, "the tmpfs of tenants cannot be mounted or unmounted")

    def _read_units_anew(self) -> None:
        """For services that have a tenant's drop-in as a link: systemd knows what it said when it last read it."""
        if systemd.booted(self._root):
            self._systemctl(["daemon-reload"], "it cannot read the drop-ins of tenants")

    def _systemctl(self, arguments: Sequence[str], problem: str) -> None:
        """Run systemctl. Raises ApplyError with the `problem` where it fails."""
        try:
            systemd.tell(self._run, ["systemctl", *arguments])
        except (systemd.NoAnswerError, FileNotFoundError) as error:
            cure = "See: systemctl status. Then run systemctl %s." % " ".join(arguments)
            raise ApplyError("systemd", "%s: %s" % (problem, error), cure) from error

    def _is_right(self, file: vgpu_files.SharedFile) -> bool:
        """Whether exactly those may write the file who should, and it has not grown beyond its size."""
        with contextlib.suppress(OSError):
            status = (self._root / file.path).lstat()
            return (
                stat.S_ISREG(status.st_mode)
                and stat.S_IMODE(status.st_mode) == file.mode
                and (file.group is None or status.st_gid == _gid(file.group))
                and status.st_size <= file.most_bytes
            )
        return False

    def _make_shared_files(self, tenant: VgpuTenant) -> None:
        """Make the files below /run, by systemd-tmpfiles, which gives them labels too, or without it."""
        wrong = [file for file in vgpu_files.shared_files(tenant) if not self._is_right(file)]
        if not wrong:
            return
        if self._root == Path("/"):
            with contextlib.suppress(FileNotFoundError):
                ask(self._run, ["systemd-tmpfiles", "--create", "/" + vgpu_files.TMPFILES_PATH])
        try:
            for file in wrong:
                path = self._root / file.path
                durable.make_folder(path.parent)
                _make_shared(path, file)
        except OSError as error:
            raise ApplyError(str(error.filename), "it cannot be made: %s" % error, durable.cure_of(error)) from error

    def _remove(self, path: str) -> None:
        """Remove a file if it is there. Raises ApplyError."""
        try:
            (self._root / path).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ApplyError("/" + path, "it cannot be removed: %s" % error, durable.cure_of(error)) from error


def _not_looked_at(holder: Holder) -> Holder:
    who = "%s, which may be the tenant's: the look ended before its turn. End processes that are not needed, and run again."
    return dataclasses.replace(holder, kind=UNKNOWN, who=who % holder.who)


def _gid(group: str) -> int | None:
    """Return the number of a group that the host knows, None where it does not."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _make_shared(path: Path, file: vgpu_files.SharedFile) -> None:
    """Create the file or correct it. A link is not followed, and what is no regular file is removed.

    What a process wrote behind the end of the shared memory is cut off: no process has it mapped.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            _remove_folder(path)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if file.group is not None:
            os.fchown(descriptor, -1, grp.getgrnam(file.group).gr_gid)
        os.fchmod(descriptor, file.mode)
        if os.fstat(descriptor).st_size > file.most_bytes:
            os.ftruncate(descriptor, file.most_bytes)
    finally:
        os.close(descriptor)


def _unlink(path: Path) -> None:
    path.unlink()


def _remove_empty(folder: Path) -> None:
    """Remove a folder that nothing is in."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_folder(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))


def _isolation(handed: Mapping[str, bool], tenant: VgpuTenant) -> str:
    """Return how the tenant's pages that the agent hands out protect it. It is as safe as on the least safe of its GPUs."""
    if not set(tenant.gpus).issubset(handed):
        return NOT_ISOLATED
    return READ_ONLY if all(handed[uuid] for uuid in tenant.gpus) else SEALED
