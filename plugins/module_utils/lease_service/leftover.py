# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End processes that still use an expired lease after its unit has ended.

Such a process uses the lease from outside its unit: a user can move own processes to other units, or pass an open
device to another process.
"""

from __future__ import annotations

from ..change.prepare import observe
from ..change.terminate import end_holders as end_processes
from ..leases.grant import Grant
from ..leases.names import lease_text, user_of
from ..model import Holder
from ..plan.disturbance import Disturbance
from ..processes import peer
from ..processes.accounts import account_of
from ..vendors.registry import vendor_of_host
from .host import lenders_of
from .owner import account_name

#: Seconds between SIGTERM and SIGKILL.
_GRACE_SECONDS = 5.0


def end_holders(directory: str, grant: Grant, account: str) -> None:
    """End the processes that hold the lease's part.

    If other leases share the GPU, only processes of the account are ended. `directory` is the host's state directory.
    Raises ApplyError if a process must not be ended or does not end.
    """
    with vendor_of_host().open() as session:
        host, private = observe(session), session.private
    holders = [
        holder
        for lender in lenders_of(directory, private).values()
        for holder in lender.holders(grant, host)
        if lender.exclusive or _is_of(holder, user_of(account))
    ]
    if holders:
        end_processes([Disturbance(lease_text(grant.number, account), tuple(holders))], _GRACE_SECONDS)


def _is_of(holder: Holder, account: str) -> bool:
    return holder.pid is not None and account_name(account_of("%s/%d" % (peer.PROC, holder.pid))) == account
