# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a host's tenants' files, and find the tenants' processes.

`files` defines the files. The role vgpu_limiter installs the library that enforces the quotas.
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
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence

from ... import durable, systemd, systemd_reload
from ...errors import ApplyError, Problem
from ...holders.model import UNKNOWN
from ...model import Gpu, Holder, Host
from ...processes.command import Run, ask, run_tool
from ...processes.file_worker import memory_or_none, one_look
from ..detached import look
from . import dmem as vgpu_dmem
from . import files as vgpu_files
from .agent_client import handed_out
from .identity import Identities
from .model import DMEM, NOT_ISOLATED, READ_ONLY, SEALED, SETTINGS, STATE, TENANTS, VgpuName, VgpuSeen, VgpuTenant
from .observe import Tenants

if TYPE_CHECKING:
    from ...plan.disturbance import Disturbance
    from .steps import VgpuPlan

#: Time limit in seconds for reading processes' tenant names, because the run holds the host's lock.
_NAMES_SECONDS = 20.0


class VgpuHost(Tenants):
    """Read and change the tenants of this host.

    `gpus` are the GPUs of the host. `run` runs command-line tools. Processes are read from `proc`, even if `root` is
    another folder.

    The caller must hold the state directory's lock for each method that changes something.
    """

    def __init__(
        self, gpus: Sequence[Gpu] = (), root: str | None = None, run: Run = run_tool, proc: str = "/proc"
    ) -> None:
        super().__init__(root)
        self._run, self._proc = run, Path(proc)
        self._regions = vgpu_dmem.regions(self._root, gpus)
        #: The last observed host, the deadline for reading its processes, and their tenant names by PID.
        self._look_at: tuple[Host, float, dict[int, set[str] | None]] | None = None

    # --- reading ----------------------------------------------------------------------------------------------------

    def available(self) -> Problem | None:
        """Return why quotas cannot be enforced, or None if they can."""
        if (self._root / vgpu_files.LIBRARY).exists():
            return None
        return Problem(
            "/" + vgpu_files.LIBRARY,
            "it is not installed, so no quota can be enforced",
            "Install it with the role openfleet.gpu.vgpu_limiter.",
        )

    def group_problem(self, tenant: VgpuTenant) -> Problem | None:
        """Return why the tenant's group cannot be used on this host, or None."""
        if tenant.group is None or _gid(tenant.group) is not None:
            return None
        return Problem(
            "the group %s" % tenant.group,
            "this host has no group %s" % tenant.group,
            "Create it (groupadd --system %s), or change or remove the key group." % tenant.group,
        )

    @property
    def dmem(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs whose memory the kernel can limit."""
        return frozenset(self._regions)

    def observe(self) -> tuple[VgpuSeen, ...]:
        """Return all tenants with files of this collection, sorted by name.

        Raises ApplyError if a file cannot be read.
        """
        try:
            tenants = self.tenants()
        except ApplyError as error:
            # Reading has changed nothing, so the outcome is "old".
            error.outcome = "old"
            raise
        shared = durable.differing(self._root, self._shared(tenants))
        handed = handed_out(self._root) if any(tenant.has_neighbours(tenants) for tenant in tenants) else {}
        renamed = [name for tenant in tenants if tenant.aliases for name in tenant.names]
        in_use = self.names_in_use(renamed) if renamed else ()
        all_seen = [self._look(tenant, shared, in_use) for tenant in tenants]
        return tuple(
            dataclasses.replace(seen, isolation=_isolation(handed, seen.tenant))
            if seen.tenant.has_neighbours(tenants)
            else seen
            for seen in all_seen
        )

    def _look(self, tenant: VgpuTenant, shared: Sequence[str], in_use: Sequence[VgpuName]) -> VgpuSeen:
        outdated = {*shared, *durable.differing(self._root, vgpu_files.files(tenant, self._driver))}
        outdated.update(file.path for file in vgpu_files.shared_files(tenant) if not self._is_right(file))
        if not (self._root / vgpu_files.agent_folder(tenant.key)).is_dir():
            outdated.add(vgpu_files.agent_folder(tenant.key))
        if (self._root / vgpu_files.alias_path(tenant.name)).exists():
            outdated.add(vgpu_files.alias_path(tenant.name))
        if tenant.provider == DMEM:
            limits = vgpu_dmem.limits(self._root, tenant.key)
            if any(limits.get(region) != limit for region, limit in vgpu_dmem.wanted(tenant, self._regions).items()):
                outdated.add("dmem.max")
        own = tuple(used for used in in_use if tenant.aliases and used.name in tenant.names)
        return dataclasses.replace(self.look(tenant), outdated=tuple(sorted(outdated)), names_in_use=own)

    def processes(self, host: Host, name: str, gpu_uuid: str) -> tuple[Holder, ...]:
        """Return the GPU's holders that are, or may be, processes of the tenant.

        All calls with the same `host` share one deadline, because a user may run many processes with many mounts. A
        process that was not checked in time blocks the change and is not ended.
        """
        gpu = next((gpu for gpu in host.gpus if gpu.uuid == gpu_uuid), None)
        # A tenant's processes have its environment or mount, so a scheduler's record alone is not a process.
        candidates = [
            holder for holder in (gpu.held_by if gpu is not None else ()) if not (holder.watches or holder.recorded)
        ]
        names = self._names_at(host, [holder.pid for holder in candidates if holder.pid is not None])
        holders = []
        for holder in candidates:
            if holder.kind == UNKNOWN or (holder.pid is not None and name in (names.get(holder.pid, {name}) or ())):
                late = holder.kind != UNKNOWN and holder.pid not in names
                holders.append(_not_checked(holder) if late else holder)
        return tuple(holders)

    def _names_at(self, host: Host, pids: Sequence[int]) -> dict[int, set[str] | None]:
        """Return each process's tenant names, as in `names_of`.

        Leaves out processes that were not checked before the deadline.
        """
        if self._look_at is None or self._look_at[0] is not host:
            self._look_at = (host, time.monotonic() + _NAMES_SECONDS, {})
        _host, deadline, names = self._look_at
        with one_look(deadline):
            for pid in pids:
                if pid not in names and time.monotonic() <= deadline:
                    names[pid] = self.names_of(pid)
        return names

    def names_in_use(self, names: Sequence[str]) -> tuple[VgpuName, ...]:
        """Return the names that processes use, with the processes' PIDs.

        The result is in the order of `names`. It includes processes that use no GPU.

        The search has a deadline, because a user may run many processes with many mounts. A process that does not
        answer, or was not checked in time, is assumed to use every name.
        """
        pids: dict[str, list[int]] = {name: [] for name in names}
        deadline = time.monotonic() + _NAMES_SECONDS
        with one_look(deadline):
            for pid in sorted(int(path.name) for path in self._proc.glob("[0-9]*")):
                late = time.monotonic() > deadline
                own = None if late else self.names_of(pid)
                for name in names if own is None else own.intersection(names):
                    pids[name].append(pid)
                if late:
                    break
        return tuple(VgpuName(name, tuple(pids[name])) for name in names if pids[name])

    def names_of(self, pid: int) -> set[str] | None:
        """Return a process's tenant names (see `identity`).

        Returns None if the process does not answer and may therefore have any name.
        """
        return Identities(self._root, str(self._proc), memory_or_none).names_of(pid)

    def reload_disturbs(self, part: VgpuPlan, holders: Iterable[Holder]) -> list[Disturbance]:
        """Return the containers that would lose their GPUs in a systemd reload.

        Returns an empty list if the part needs no reload.
        """
        if not self._reloads(part):
            return []
        return look(self._root, holders, self._run)

    def _reloads(self, part: VgpuPlan) -> bool:
        """Return whether the part changes drop-ins or the mount unit."""
        if part.removes or any(step.ended_names for step in part.changes):
            return True
        tenants = [step.tenant for step in (*part.changes, *part.adds)]
        units = {}
        for tenant in tenants:
            texts = vgpu_files.files(tenant, self._driver)
            units.update({path: texts[path] for path in vgpu_files.drop_ins(tenant)})
        if tenants:
            folder = vgpu_files.limited_folder([*tenants, *(seen.tenant for seen in (*part.kept, *part.left))])
            units[folder.unit_path] = folder.unit_text
        return bool(durable.differing(self._root, units))

    # --- changing ---------------------------------------------------------------------------------------------------

    def write(self, tenant: VgpuTenant) -> None:
        """Write a tenant's missing and differing files. Raises ApplyError.

        The tenant's running processes follow the new quota.
        """
        problems = [vgpu_files.name_problem(name) for name in tenant.names]
        problem = next(filter(None, problems), None) or self.group_problem(tenant)
        if problem:
            raise ApplyError(problem.where, problem.problem, problem.cure)
        files = vgpu_files.files(tenant, self._driver)
        self._end_names(tenant)
        # Write the spec first, because it identifies all other files as this tenant's.
        spec = vgpu_files.spec_path(tenant.key)
        self._write({spec: files.pop(spec)})
        # After a rename back to an earlier name, that name is no longer an alias.
        self._remove(vgpu_files.alias_path(tenant.name))
        if tenant.provider == DMEM:
            vgpu_dmem.bound(self._root, self._run, tenant, self._regions)
        tenants = self.tenants()
        folder = vgpu_files.limited_folder(tenants)
        changed = folder.unit_path in self._write(self._shared(tenants))
        if self._mounts:
            # On a host with regions, mount the tmpfs only at the next boot. Now it would hide regions that processes
            # have mapped.
            in_use = any((self._root / TENANTS).glob("*/region.*"))
            folder.mount(self._root, self._mount_systemctl, changed, in_use)
        self._make_shared_files(tenant)
        durable.make_folder(self._root / vgpu_files.agent_folder(tenant.key))
        drop_ins = durable.differing(self._root, {path: files[path] for path in vgpu_files.drop_ins(tenant)})
        self._write(files)
        if drop_ins:
            self._reload_units()
        if tenant.provider != DMEM:
            vgpu_dmem.unbound(self._root, self._run, tenant.key)
            for name in tenant.names:
                self._remove(vgpu_files.slice_path(name))
        self._forget_turnstiles(tenants)

    def _end_names(self, tenant: VgpuTenant) -> None:
        """Remove the names that the tenant loses, while its spec still lists them."""
        spec = self._root / vgpu_files.spec_path(tenant.key)
        before = next((one for one in self.tenants() if one.key == tenant.key), None) if spec.exists() else None
        ended = [name for name in before.names if name not in tenant.names] if before is not None else []
        try:
            for name in ended:
                self._forget_name(name)
        except OSError as error:
            cure = "Remove it as root and run again."
            raise ApplyError(str(error.filename or tenant.name), "cannot remove it: %s" % error, cure) from error
        if ended:
            self._reload_units()

    def _forget_name(self, name: str) -> None:
        """Remove the files that start programs under this name. Raises OSError.

        If the name is also the key of a tenant, the spec and its folder are kept.
        """
        durable.remove(self._root / vgpu_files.cdi_path(name))
        folder, spec = self._root / vgpu_files.folder(name), Path(vgpu_files.spec_path(name)).name
        for path in sorted(folder.glob("*")):
            if not path.name.startswith(spec):
                _unlink(path)
        _remove_empty(folder)

    def forget(self, name: str) -> None:
        """Remove all files of a tenant. Raises ApplyError.

        The shared files are removed with the last tenant.
        """
        tenant = next((tenant for tenant in self.tenants() if tenant.name == name), None)
        if tenant is None:
            # A tenant without a spec has no other files, because the spec is written first and removed last.
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
            self.update_shared()
            if tenant.lease is None:
                self._reload_units()
        except OSError as error:
            cure = "Remove it as root and run again."
            raise ApplyError(str(error.filename or name), "cannot remove it: %s" % error, cure) from error

    def update_shared(self) -> None:
        """Update the files that tenants share. Raises OSError or ApplyError.

        After an interrupted removal of a tenant, they may still exist.
        """
        tenants = self.tenants()
        self._forget_folders({tenant.key for tenant in tenants})
        self._forget_turnstiles(tenants)
        if tenants:
            self._write(self._shared(tenants))
        elif any((self._root / path).exists() for path in self._shared(())):
            self._forget_shared()

    def _forget_folders(self, keys: set[str]) -> None:
        """Remove the folders of tenants without a spec.

        An interrupted removal leaves them. A boot after it creates some of them again (TMPFILES_PATH).
        """
        folders = ((TENANTS, _remove_folder), (vgpu_files.AGENT, _remove_folder), (SETTINGS, _remove_empty))
        for parent, remove in folders:
            for path in list((self._root / parent).glob("*")):
                if path.name not in keys:
                    remove(path)

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
                # Keep folders that have other programs' files.
                with contextlib.suppress(OSError):
                    path.rmdir()

    def _forget_turnstiles(self, tenants: Sequence[VgpuTenant]) -> None:
        """Remove turnstiles of GPUs without tenants.

        Running processes keep the files that they have open.
        """
        used = {self._root / vgpu_files.turnstile_path(uuid) for tenant in tenants for uuid in tenant.gpus}
        for path in set((self._root / vgpu_files.GPUS).glob("*")) - used:
            _remove_folder(path)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    # --- helpers ------------------------------------------------------------------------------------------------

    @property
    def _driver(self) -> str | None:
        """Return the path of the driver's libcuda.so.1, which the front loads.

        The path is relative to the host's root. Returns None if containers get no front.
        """
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
            # Set the SELinux labels, which decide whether containers may read the files.
            with contextlib.suppress(FileNotFoundError):
                ask(self._run, ["restorecon", *sorted({str(each) for path in written for each in (path.parent, path)})])
        return differing

    @property
    def _mounts(self) -> bool:
        """Return whether the tmpfs can be mounted.

        It is not mounted below a test root or without systemd.
        """
        return self._root == Path("/") and systemd.booted(self._root)

    def _mount_systemctl(self, arguments: Sequence[str]) -> None:
        self._systemctl(arguments, "cannot mount or unmount the tmpfs of tenants")

    def _reload_units(self) -> None:
        """Reload systemd, because services may link to a tenant's drop-in."""
        if systemd.booted(self._root):
            self._systemctl(systemd_reload.RELOAD[1:], "cannot read the drop-ins of tenants")

    def _systemctl(self, arguments: Sequence[str], problem: str) -> None:
        """Run systemctl. Raises ApplyError with `problem` if it fails."""
        try:
            systemd.tell(self._run, ["systemctl", *arguments])
        except (systemd.NoAnswerError, FileNotFoundError) as error:
            cure = "Check `systemctl status`, then run `systemctl %s`." % " ".join(arguments)
            raise ApplyError("systemd", "%s: %s" % (problem, error), cure) from error

    def _is_right(self, file: vgpu_files.SharedFile) -> bool:
        """Return whether the type, mode, group and size of the file are correct."""
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
        """Create the tenant's files in /run.

        Uses systemd-tmpfiles if it is installed, because it also sets SELinux labels.
        """
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
            raise ApplyError(str(error.filename), "cannot create it: %s" % error, durable.cure_of(error)) from error

    def _remove(self, path: str) -> None:
        """Remove a file if it exists. Raises ApplyError."""
        try:
            (self._root / path).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ApplyError("/" + path, "cannot remove it: %s" % error, durable.cure_of(error)) from error


def _not_checked(holder: Holder) -> Holder:
    who = (
        "%s, which may belong to the tenant, because it was not checked in time. End unneeded processes and run again."
    )
    return dataclasses.replace(holder, kind=UNKNOWN, who=who % holder.who)


def _gid(group: str) -> int | None:
    """Return the GID of a group, or None if the host has no such group."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _make_shared(path: Path, file: vgpu_files.SharedFile) -> None:
    """Create or correct a shared memory file.

    Does not follow links. Removes anything except a regular file. Truncates data beyond the maximum size. This ends no
    process, because processes map only the maximum size.
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
    """Remove a folder if it is empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_folder(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))


def _isolation(handed: Mapping[str, bool], tenant: VgpuTenant) -> str:
    """Return the tenant's isolation on its least isolated GPU.

    It depends on how the agent protects the pages of each GPU.
    """
    if not set(tenant.gpus).issubset(handed):
        return NOT_ISOLATED
    return READ_ONLY if all(handed[uuid] for uuid in tenant.gpus) else SEALED
