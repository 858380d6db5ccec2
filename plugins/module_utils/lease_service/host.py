# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grant leases on the GPUs of this host, and take them back.

`schedule` decides which request starts where. `LeaseHost` creates its MIG instances or its quota.

Two records say which parts of GPUs belong to a lease: leased.json for MIG instances, and the specs of tenants for quotas.
They are written before the part exists and removed after it is gone, so that `LeaseHost.recover` finds each part after a
crash. Bookings (`record.BookingRecord`) belong to the caller.
"""

from __future__ import annotations

import contextlib
import grp
import pwd
import re
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

from ..cdi.follow import follow
from ..change import lost_gpus
from ..change.apply_plan import Context, apply
from ..change.journal import Journal
from ..change.pending import PendingReboot, WaitingRun
from ..change.prepare import ALL_PARTS, PlanRequest, make_plan, observe, services_for
from ..change.recovery import recover
from ..change.unnamed import AppliedRecord
from ..errors import ApplyError, BusyError, FleetError, FollowError
from ..frozen import frozen
from ..layout.files import read_layout
from ..layout.leases import HOST
from ..layout.types import Entry, Layout
from ..leases.model import Booking, Card, LeaseError, Offer, Shape, Use
from ..leases.names import lease_of, lease_text, tenant_name
from ..model import Device, Host
from ..plan.gpu_plan import Plan
from ..plan.leased import LeasedRecord
from ..plan.ownership import KEEP, Ownership, Record
from ..plan.transaction import DIRECTORY, LockedError, locked, looking
from ..slurm.mig_devices import DeviceNodes, device_files, mig_devices
from ..slurm.task_devices import read_nodes
from ..techniques.forms import parse_layout
from ..techniques.registry import SERVING, observers_for
from ..techniques.vgpu import files as vgpu_files
from ..techniques.vgpu import leases as quotas
from ..techniques.vgpu.host import VgpuHost
from ..techniques.vgpu.model import DMEM, VgpuTenant, applies
from ..techniques.vgpu.model import KEY as VGPU
from ..vendors.registry import vendor_of_host
from . import instances

#: The layout that the role gpu_layout installs.
LAYOUT = "/etc/openfleet-gpu/layout.json"
#: Device nodes that all programs on GPUs need.
_NODES = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools")
#: Names of groups that all files with a tenant's group can have.
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_LATER = "Try again later."


class RetryLaterError(LeaseError):
    """A request that can succeed later without any change of the request.

    Examples: a layout change runs or is pending, or a process still uses the place.
    """


@frozen
class Grant:
    """The part of the GPUs that a lease has.

    number       number of the lease, which is that of its request
    gpu_uuids    UUIDs of the GPUs, in the order in which programs see them
    mig_uuids    UUIDs of the MIG devices, in the same order. Empty for a quota
    tenant       name of the vGPU tenant, or None for MIG
    environment  (name, value) of each variable for programs of the lease, such as CUDA_VISIBLE_DEVICES
    devices      paths of the device nodes that programs need. With MIG, no other GPU node is needed
    cdi          names of the CDI devices for containers
    group        Unix group that may use the quota, or None
    slice        systemd slice that limits the memory of programs outside containers, or None
    warnings     sentences about CDI specifications that could not be renewed
    """

    number: int
    gpu_uuids: tuple[str, ...]
    mig_uuids: tuple[str, ...] = ()
    tenant: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    group: str | None = None
    slice: str | None = None
    warnings: tuple[str, ...] = ()


@frozen
class Recovered:
    """An action of `LeaseHost.recover`.

    action       meaning
    given back   the lease had no living unit
    in use       the lease has no living unit, but a process still uses its part. The next call tries again
    lost         the unit lives, but the part of the lease is gone. The caller must stop the unit and give the lease back
    restored     the quota of a living lease was written again

    `text` is a sentence for the journal of the host.
    """

    number: int
    action: str
    text: str


@frozen
class _Ready:
    """The host as read for a lease, with a card for each GPU that can have leases."""

    host: Host
    ownership: Ownership
    entries: tuple[Entry, ...]
    cards: tuple[tuple[str, Any, Any], ...]
    tenants: tuple[VgpuTenant, ...]

    def card(self, where: str, uuid: str) -> tuple[Any, Any]:
        """Return a GPU of the entry and its card. Raises RetryLaterError."""
        for place, gpu, card in self.cards:
            if (place, gpu.uuid) == (where, uuid):
                return gpu, card
        raise RetryLaterError("%s on gpu %s" % (where, uuid), "the GPU does not have its layout, or is lost", _LATER)

    def entry(self, where: str) -> Entry:
        """Return an entry with leases. Raises LeaseError."""
        for entry in self.entries:
            if entry.where == where:
                return entry
        raise LeaseError(where, "it no longer offers leases", "Take a lease from another entry.")


class LeaseHost:
    """The GPUs of this host with leases.

    `directory` is the state directory of the host, and `layout` the path of its layout. Each method that changes something
    holds the lock of the layout. If the lock is not free within `lock_timeout_seconds`, RetryLaterError is raised.
    Methods also raise FleetError if the driver does not answer, and ApplyError if a record cannot be written. `recover`
    repairs the state after such an error. `root` has the device nodes.
    """

    def __init__(
        self, directory: str = DIRECTORY, layout: str = LAYOUT, lock_timeout_seconds: float = 10.0, root: str = "/"
    ) -> None:
        self._directory, self._layout, self._lock_timeout_seconds = directory, layout, lock_timeout_seconds
        self._root = Path(root)
        self._leased = LeasedRecord(directory)

    # --- reading ----------------------------------------------------------------------------------------------------

    def offers(self, allocator: str = HOST) -> tuple[Offer, ...]:
        """Return the entries whose leases `allocator` grants, with a card for each GPU.

        `Offer.leases` has the groups and limits. The cards know fixed and idle instances, and the quotas of fixed tenants,
        but no leases: these are the bookings of the schedule. A GPU that is lost or does not have its layout yet has no
        card. Raises RetryLaterError if a layout change runs or is pending.
        """
        with looking(self._directory) as busy:
            if busy is not None:
                raise RetryLaterError(busy.where, busy.problem, _LATER)
            self._refuse_pending()
            with vendor_of_host().open() as session:
                ready = self._read(session)
        changing = self._in_journal()
        cards = [(where, card) for where, gpu, card in ready.cards if gpu.uuid not in changing]
        offers = [
            Offer(entry.where, entry.leases, tuple(card for where, card in cards if where == entry.where))
            for entry in ready.entries
            if entry.leases.by == allocator
        ]
        return tuple(offer for offer in offers if offer.cards)

    def tenants(self) -> tuple[VgpuTenant, ...]:
        """Return the vGPU tenants of the layout, without those of leases."""
        with vendor_of_host().open() as session:
            every = VgpuHost().tenants() if applies(session.private) else []
        return tuple(tenant for tenant in every if tenant.lease is None)

    def grant(self, number: int) -> Grant:
        """Return the grant of a current lease.

        Raises LeaseError if the lease has no complete part.
        """
        with looking(self._directory) as busy:
            if busy is not None:
                raise RetryLaterError(busy.where, busy.problem, _LATER)
            with vendor_of_host().open() as session:
                return self._grant(number, session.observe(), session.private)

    # --- changing ---------------------------------------------------------------------------------------------------

    def take(self, booking: Booking) -> Grant:
        """Create the instances or the quota of a started booking in its places.

        Idle instances of earlier leases in these places are removed or used again. Nothing else is changed. If the lease
        exists already, its grant is returned. Raises RetryLaterError if a layout change runs or is pending, or if a place
        is not free.
        """
        number = booking.request.number
        with self._changing() as context:
            self._refuse_pending()
            ready = self._read(context.session)
            private = context.session.private
            if number in self._current(private):
                # The caller may not know that an earlier call succeeded.
                self._settle(ready.host)
                with contextlib.suppress(LeaseError):
                    return self._grant(number, ready.host, private)
                self._give_back(number, context.observe(), private)
                ready = self._read(context.session)
            entry = ready.entry(booking.where)
            warnings: tuple[str, ...] = ()
            if entry.sharing == VGPU:
                self._take_quota(booking, entry, ready)
                host = ready.host
            else:
                host, changed = self._take_instances(booking, ready, context)
                warnings = _renewed_cdi() if changed and not context.session.private else ()
            return self._grant(number, host, context.session.private, warnings)

    def resize(self, number: int, shape: Shape) -> Grant:
        """Change the quota of a lease. Running programs follow.

        Raises LeaseError for MIG, or if there is no room. The quota is then unchanged.
        """
        with self._changing() as context:
            self._refuse_pending()
            ready = self._read(context.session)
            tenant = next((each for each in ready.tenants if each.name == tenant_name(number)), None)
            where = "lease %d" % number
            if tenant is None or shape.profile is not None:
                raise LeaseError(where, "it has no quota that can be changed", "End it, and take another lease.")
            for uuid in tenant.gpus:
                card = next((card for _where, gpu, card in ready.cards if gpu.uuid == uuid), None)
                if card is None:
                    raise RetryLaterError(where, "gpu %s does not have its layout, or is lost" % uuid, _LATER)
                used = quotas.uses(uuid, ready.tenants, tenant.name)
                if card.find(shape, [used]) is None:
                    raise LeaseError(
                        where, "there is no room. Free is: %s" % (card.free(used) or "nothing"), "Ask for less."
                    )
            VgpuHost(ready.host.gpus).write(quotas.resized(tenant, shape))
            return self._grant(number, ready.host, context.session.private)

    def give_back(self, number: int) -> None:
        """Take back the part of a lease. Stop its unit first.

        Instances stay as idle instances. The next lease with the same profile uses them again. A lease without a part is
        not an error. Raises RetryLaterError if a process still uses the part. The lease then keeps it.
        """
        with self._changing() as context:
            self._give_back(number, observe(context.session), context.session.private)

    def recover(self, living: Iterable[int]) -> tuple[Recovered, ...]:
        """Repair after a crash, a boot or a reload of the driver, and return the actions.

        `living` are the numbers of the leases whose unit lives. All other leases are given back. If a process still uses
        one of them, it is tried again in the next call.
        """
        numbers = set(living)
        done: list[Recovered] = []
        with self._changing() as context:
            host, private = observe(context.session), context.session.private
            self._settle(host)
            current = self._current(private)
            for number in sorted(current.keys() - numbers):
                text = current[number]
                try:
                    self._give_back(number, host, private)
                except RetryLaterError as error:
                    done.append(Recovered(number, "in use", str(error)))
                else:
                    done.append(Recovered(number, "given back", "%s had no unit and was given back" % text))
            vgpu = VgpuHost(host.gpus)
            if applies(private):
                vgpu.update_shared()
            outdated = {seen.tenant.name: seen for seen in vgpu.observe() if seen.outdated} if applies(private) else {}
            for number in sorted(numbers):
                text = current.get(number, "lease %d" % number)
                try:
                    self._grant(number, host, private)
                except LeaseError as error:
                    done.append(Recovered(number, "lost", str(error)))
                    continue
                if tenant_name(number) in outdated:
                    vgpu.write(outdated[tenant_name(number)].tenant)
                    done.append(Recovered(number, "restored", "the quota of %s was written again" % text))
        return tuple(done)

    # --- helpers ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Context]:
        """Hold the lock of the layout, and complete an interrupted change."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self._directory, self._lock_timeout_seconds))
            except LockedError as error:
                raise RetryLaterError(error.where, error.problem, _LATER) from None
            session = held.enter_context(vendor_of_host().open())

            def look(gpu: str | None = None) -> Host:
                return observe(session, None, gpu)

            journal, applied = Journal(self._directory), AppliedRecord(self._directory)
            context = Context(session, journal, Record(self._directory), look, None, applied, self._leased)
            if journal.read() is not None:
                recover(context, [each.service(session.private) for each in SERVING if each.service])
            # Changes for leases adopt no instances and record no layout.
            yield Context(session, journal, None, look, None, None, self._leased)

    def _refuse_pending(self) -> None:
        """Raise RetryLaterError if a layout change is pending."""
        if PendingReboot(self._directory).due():
            raise RetryLaterError("this host", "a layout change waits for a reboot", _LATER)
        if WaitingRun(self._directory).due():
            raise RetryLaterError("this host", "a layout change waits until its GPUs are free", _LATER)

    def _in_journal(self) -> set[str]:
        """Return the UUIDs of the GPUs whose change was interrupted."""
        entry = Journal(self._directory).read()
        return set() if entry is None else {target.gpu_uuid for target in (*entry.before, *entry.after)}

    def _read(self, session: Any) -> _Ready:
        """Read the layout and the host.

        GPUs that are lost or do not have their layout get no card.
        """
        layout = parse_layout(read_layout(self._layout))
        layout = Layout(tuple(entry for entry in layout.entries if entry.leases is not None))
        session.observers = observers_for(layout, self._directory)
        services = services_for(ALL_PARTS, layout, session.private)
        for service in services:
            service.observe()
        host = session.observe()
        for service in services:
            service.observe_on(host.gpus)
        ownership = Ownership(KEEP, Record(self._directory).read(), self._leased.read())
        layout = lost_gpus.answering(layout, host, lost_gpus.SKIP).layout
        plan = make_plan(layout, host, ownership, PlanRequest(), services)
        tenants = tuple(VgpuHost(host.gpus).tenants()) if applies(session.private) else ()
        entries = {entry.where: entry for entry in layout.entries}
        cards = [
            (each.target.where, each.gpu, _card(each.gpu, entries[each.target.where], ownership, tenants))
            for each in plan.gpus
            if not plan.changed(each)
        ]
        return _Ready(host, ownership, tuple(layout.entries), tuple(cards), tenants)

    def _take_instances(self, booking: Booking, ready: _Ready, context: Context) -> tuple[Host, bool]:
        """Create the instances of a booking.

        Returns the host, and whether instances changed.
        """
        request = booking.request
        shape, text = request.shape, lease_text(request.number, request.account)
        plans = []
        for place in booking.places:
            gpu, card = ready.card(booking.where, place.gpu_uuid)
            used = instances.uses(gpu, ready.ownership, text)
            if card.find(shape, [used], place.start) is None:
                raise _not_free(booking, gpu, shape, card, used)
            removed = card.removed(Use(shape, place.start))
            plans.append(instances.plan(gpu, shape, place, removed, booking.where))
        plan = Plan(tuple(plans))
        self._refuse_used(booking, context)
        before = self._leased.read()
        self._leased.write(instances.taken(before, shape, booking.places, text))
        try:
            host = apply(context, plan) if plan.changes else ready.host
        except FleetError as error:
            if not isinstance(error, ApplyError) or error.outcome == "old":
                # The rollback has recorded the new UUIDs of instances that it created again. If the records cannot be
                # written, `recover` corrects them. The first error has the reason.
                with contextlib.suppress(FleetError):
                    self._leased.write(instances.released(self._leased.read(), text))
                    self._settle(context.session.observe())
            if isinstance(error, BusyError):
                raise RetryLaterError(error.where, "an idle instance is still in use", _LATER) from error
            raise
        self._settle(host)
        return host, plan.changes

    def _refuse_used(self, booking: Booking, context: Context) -> None:
        """Raise RetryLaterError if a process uses an idle instance in one of the places."""
        places = {(place.gpu_uuid, place.start) for place in booking.places}
        records = [each for each in self._leased.read() if (each.gpu_uuid, each.start) in places and each.mig_uuids]
        if records:
            self._refuse_holders(booking.request.number, [(r, context.observe()) for r in records])

    def _refuse_holders(self, number: int, records: Iterable[Any]) -> None:
        for record, host in records:
            for gpu in host.gpus:
                instance: Any = instances.instance_of(record, gpu) if gpu.uuid == record.gpu_uuid else None
                who = [] if instance is None else [h for h in (*instance.held_by, *instance.processes) if _holds(h)]
                if who:
                    where = "%s@%d on %s" % (record.profile, record.start, gpu.short_label)
                    problem = "it is still in use by %s" % ", ".join(dict.fromkeys(map(str, who[:5])))
                    raise RetryLaterError("lease %d, %s" % (number, where), problem, _LATER)

    def _take_quota(self, booking: Booking, entry: Entry, ready: _Ready) -> None:
        request = booking.request
        name, shape = tenant_name(request.number), request.shape
        vgpu = VgpuHost(ready.host.gpus)
        known = next((tenant for tenant in ready.tenants if tenant.name == name), None)
        for place in booking.places:
            gpu, card = ready.card(booking.where, place.gpu_uuid)
            used = quotas.uses(gpu.uuid, ready.tenants, name)
            if card.find(shape, [used]) is None:
                raise _not_free(booking, gpu, shape, card, used)
        problem = vgpu.available()
        if problem is not None:
            raise LeaseError("%s: %s" % (booking.where, problem.where), problem.problem, problem.cure)
        # The programs of a pod can have any user. Only its containers get the files of the quota.
        group = None if request.claim is not None else _group_of(request.account)
        tenant = known or quotas.tenant_of(booking, entry, ready.host.gpus, ready.tenants, vgpu.dmem, group)
        try:
            vgpu.write(tenant)
        except ApplyError:
            if known is None:
                with contextlib.suppress(ApplyError):
                    vgpu.forget(name)
            raise

    def _give_back(self, number: int, host: Host, private: bool) -> None:
        """Take back the part of a lease. `host` has the holders of its GPUs."""
        text = self._current(private).get(number)
        if text is None:
            return
        records = self._leased.read()
        self._refuse_holders(number, [(record, host) for record in records if record.lease == text])
        name, vgpu = tenant_name(number), VgpuHost(host.gpus)
        tenants = [each for each in vgpu.tenants() if each.name == name] if applies(private) else []
        for tenant in tenants:
            who = [holder for uuid in tenant.gpus for holder in vgpu.processes(host, name, uuid)]
            if who:
                problem = "its quota is still in use by %s" % ", ".join(dict.fromkeys(map(str, who[:5])))
                raise RetryLaterError("lease %d" % number, problem, _LATER)
        self._leased.write(instances.settled(instances.released(records, text), host))
        for tenant in tenants:
            vgpu.forget(tenant.name)

    def _settle(self, host: Host) -> None:
        self._leased.write(instances.settled(self._leased.read(), host))

    def _current(self, private: bool) -> dict[int, str]:
        """Return the text of each lease with a part, by its number."""
        texts = [record.lease for record in self._leased.read()]
        texts += [tenant.lease for tenant in VgpuHost().tenants()] if applies(private) else []
        known = ((lease_of(text), text) for text in texts)
        return {lease[0]: text for lease, text in known if lease is not None and text is not None}

    def _grant(self, number: int, host: Host, private: bool, warnings: tuple[str, ...] = ()) -> Grant:
        tenants = VgpuHost(host.gpus).tenants() if applies(private) else []
        nodes = read_nodes(self._root)
        always = tuple("/" + path for path in _NODES if (self._root / path).exists())
        for tenant in tenants:
            if tenant.name == tenant_name(number):
                return _grant_of_quota(number, tenant, (*always, *_gpu_nodes(tenant.gpus, nodes)), warnings)
        text = self._current(private).get(number)
        records = [record for record in self._leased.read() if text is not None and record.lease == text]
        order = {gpu.uuid: gpu for gpu in host.gpus}
        parts = []
        for record in sorted(records, key=lambda each: order[each.gpu_uuid].index if each.gpu_uuid in order else -1):
            gpu = order.get(record.gpu_uuid)
            instance = None if gpu is None else instances.instance_of(record, gpu)
            if gpu is None or instance is None:
                place = "%s@%d on gpu %s" % (record.profile, record.start, record.gpu_uuid)
                raise LeaseError(
                    "lease %d" % number, "its instance %s is gone" % place, "End it, and take another lease."
                )
            parts.append((gpu, instance))
        if not parts:
            raise LeaseError("lease %d" % number, "it has no part of a GPU", "Take another lease.")
        uuids = tuple(uuid for _gpu, instance in parts for uuid in instance.uuids if uuid)
        files = [
            path
            for gpu, instance in parts
            for device in mig_devices(gpu)
            if device.uuid in instance.uuids
            for path in device_files(device, nodes)
        ]
        variables = [(name, ",".join(uuids)) for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")]
        return Grant(
            number,
            tuple(dict.fromkeys(gpu.uuid for gpu, _instance in parts)),
            uuids,
            environment=tuple(variables),
            devices=(*always, *dict.fromkeys(files)),
            cdi=tuple("nvidia.com/gpu=%s" % uuid for uuid in uuids),
            warnings=warnings,
        )


def _card(gpu: Any, entry: Entry, ownership: Ownership, tenants: Sequence[VgpuTenant]) -> Any:
    if entry.sharing == VGPU:
        return quotas.card(gpu, entry.part, tenants)
    return instances.card(gpu, entry.leases.profiles, ownership)


def _not_free(booking: Booking, gpu: Device, shape: Shape, card: Card, used: Sequence[Use]) -> LeaseError:
    never = card.supports(shape)
    if never is not None:
        return LeaseError(booking.where, never, "Ask for another size.")
    problem = "the place for %s is not free. Free is: %s" % (shape, card.free(used) or "nothing")
    return RetryLaterError("%s on %s" % (booking.where, gpu.label), problem, _LATER)


def _holds(holder: Any) -> bool:
    return not getattr(holder, "watches", False)


def _group_of(account: str) -> str:
    """Return the primary group of an account. Raises LeaseError."""
    try:
        name = grp.getgrgid(pwd.getpwnam(account).pw_gid).gr_name
    except KeyError:
        raise LeaseError("the account %s" % account, "this host does not have it or its group", "Create it.") from None
    if not _GROUP.fullmatch(name):
        problem = 'its primary group "%s" has characters that files of quotas cannot contain' % name
        raise LeaseError("the account %s" % account, problem, "Give it another primary group.")
    return name


def _gpu_nodes(uuids: Iterable[str], nodes: DeviceNodes) -> tuple[str, ...]:
    return tuple("/dev/nvidia%d" % nodes.minors[uuid] for uuid in uuids if uuid in nodes.minors)


def _grant_of_quota(number: int, tenant: VgpuTenant, devices: tuple[str, ...], warnings: tuple[str, ...]) -> Grant:
    return Grant(
        number,
        tenant.gpus,
        tenant=tenant.name,
        environment=tuple(vgpu_files.environment(tenant, tenant.name).items()),
        devices=devices,
        cdi=("%s=%s" % (vgpu_files.CDI_KIND, tenant.name), *("nvidia.com/gpu=%s" % uuid for uuid in tenant.gpus)),
        group=tenant.group,
        slice=vgpu_files.slice_of(tenant.key) if tenant.provider == DMEM else None,
        warnings=warnings,
    )


def _renewed_cdi() -> tuple[str, ...]:
    """Renew the CDI specifications of the host, and return what failed."""
    try:
        follow(())
    except FollowError as error:
        return tuple(map(str, error.problems))
    return ()
