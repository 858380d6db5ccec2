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

from typing import Iterable

from ..frozen import frozen
from ..plan.transaction import DIRECTORY
from .model import Booking, LeaseError, Offer, Shape

#: The layout that the role gpu_layout installs.
LAYOUT = "/etc/openfleet-gpu/layout.json"


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


@frozen
class Recovered:
    """An action of `LeaseHost.recover`.

    `action` is "given back" for a lease without a living unit, "lost" for a living lease whose instance is gone, and
    "restored" for a quota that was written again. The caller must stop the unit of a lost lease. `text` is a sentence for
    the journal.
    """

    number: int
    action: str
    text: str


class LeaseHost:
    """The GPUs of this host with leases.

    `directory` is the state directory of the host, and `layout` the path of its layout. Each method that changes something
    holds the lock of the layout. If the lock is not free within `lock_timeout_seconds`, RetryLaterError is raised.
    Methods also raise FleetError if the driver does not answer, and ApplyError if a record cannot be written.
    """

    def __init__(self, directory: str = DIRECTORY, layout: str = LAYOUT, lock_timeout_seconds: float = 10.0) -> None:
        self._directory, self._layout, self._lock_timeout_seconds = directory, layout, lock_timeout_seconds

    def offers(self) -> tuple[Offer, ...]:
        """Return the entries with leases, and a card for each of their GPUs.

        `Offer.leases` has the groups and limits. The cards know fixed and idle instances, and the quotas of fixed tenants,
        but no leases: these are the bookings of the schedule. A GPU that is lost or does not have its layout yet has no
        card. Raises RetryLaterError if a layout change runs or is pending.
        """
        raise NotImplementedError

    def take(self, booking: Booking) -> Grant:
        """Create the instances or the quota of a started booking in its places.

        Idle instances of earlier leases in these places are removed or used again. Nothing else is changed. If the lease
        exists already, its grant is returned. Raises RetryLaterError if a layout change runs or is pending, or if a place
        is not free. Nothing is left behind after an error.
        """
        raise NotImplementedError

    def grant(self, number: int) -> Grant:
        """Return the grant of a current lease.

        Raises LeaseError if the lease has no complete part.
        """
        raise NotImplementedError

    def resize(self, number: int, shape: Shape) -> Grant:
        """Change the quota of a lease. Running programs follow.

        Raises LeaseError for MIG, or if there is no room. The quota is then unchanged.
        """
        raise NotImplementedError

    def give_back(self, number: int) -> None:
        """Take back the part of a lease. Stop its unit first.

        Instances stay as idle instances. The next lease with the same profile uses them again. A lease without a part is
        not an error. Raises RetryLaterError if a process still uses the part. The lease then keeps it.
        """
        raise NotImplementedError

    def recover(self, living: Iterable[int]) -> tuple[Recovered, ...]:
        """Repair after a crash, a boot or a reload of the driver, and return the actions.

        `living` are the numbers of the leases whose unit lives. All other leases are given back. If a process still uses
        one of them, it is tried again in the next call.
        """
        raise NotImplementedError
