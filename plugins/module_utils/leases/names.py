# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name leases in records and messages, and name their tenants and units."""

from __future__ import annotations

import re

_TEXT = re.compile(r"lease (\d{1,15}) of (\S+)")
_JOB = re.compile(r"slurm/([0-9]{1,10})/([0-9A-Za-z-]{1,64})")
_JOB_ACCOUNT = re.compile(r"job:([^\s/]+)/[0-9]+")
_UNIT = re.compile(r"openfleet-gpu-lease-[0-9]{1,15}\.scope")


def lease_text(number: int, account: str) -> str:
    """Return the text for a lease in leased.json, in specs of tenants and in messages."""
    return "lease %d of %s" % (number, account)


def lease_of(text: str | None) -> tuple[int, str] | None:
    """Return (number, account) for a text from `lease_text`, or None for another text."""
    match = _TEXT.fullmatch(text or "")
    return (int(match.group(1)), match.group(2)) if match else None


def tenant_name(number: int) -> str:
    """Return the name of the tenant of a lease with a quota."""
    return "lease-%d" % number


def unit_name(number: int) -> str:
    """Return the systemd unit that runs the programs of a lease.

    A layout change with `on_busy: force` stops this unit before it removes the lease's instance or quota.
    """
    return "openfleet-gpu-lease-%d.scope" % number


def pod_account(name: str) -> str:
    """Return the text in place of an account for the lease of a pod.

    `name` is the namespace and name of its ResourceClaim. The text cannot be the name of an account, which has no slash.
    """
    return "pod:%s" % name


def job_account(job: str, user: str) -> str:
    """Return the text in place of an account for the lease of a Slurm job.

    The text has a slash, like the text for a pod.
    """
    return "job:%s/%s" % (user, job)


def user_of(account: str) -> str:
    """Return the user of an account. A job's text can replace the account."""
    match = _JOB_ACCOUNT.fullmatch(account)
    return match.group(1) if match else account


def job_claim(job: str, boot: str) -> str:
    """Return the claim of a Slurm job. No UID of a ResourceClaim has a slash.

    `boot` is the id of the host's boot. No job survives a reboot.
    """
    return "slurm/%s/%s" % (job, boot)


def job_of(claim: str | None) -> tuple[str, str] | None:
    """Return (job, boot) for a text from `job_claim`, or None for another text."""
    match = _JOB.fullmatch(claim or "")
    return (match.group(1), match.group(2)) if match else None


def is_lease_unit(name: str) -> bool:
    """Return whether a systemd unit runs the programs of a lease.

    Only root can create a unit with this name.
    """
    return _UNIT.fullmatch(name) is not None
