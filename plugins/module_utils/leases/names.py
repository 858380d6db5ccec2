# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define texts for leases in records and messages, and their tenants and units."""

from __future__ import annotations

import re

_TEXT = re.compile(r"lease (\d{1,15}) of (\S+)")
_JOB = re.compile(r"slurm/([0-9]{1,10})/([0-9A-Za-z-]{1,64})")
_JOB_ACCOUNT = re.compile(r"job:([^\s/]+)/[0-9]+")
_UNIT = re.compile(r"openfleet-gpu-lease-[0-9]{1,15}\.scope")


def lease_text(number: int, account: str) -> str:
    """Return a lease's text for leased.json, tenants' specs and messages."""
    return "lease %d of %s" % (number, account)


def lease_of(text: str | None) -> tuple[int, str] | None:
    """Return (number, account) for a text from `lease_text`, or None for another text."""
    match = _TEXT.fullmatch(text or "")
    return (int(match.group(1)), match.group(2)) if match else None


def tenant_name(number: int) -> str:
    """Return the name of the tenant for a lease with a quota."""
    return "lease-%d" % number


def unit_name(number: int) -> str:
    """Return the systemd unit that runs a lease's programs.

    A layout change with `on_busy: force` stops this unit before it removes the lease's instance or quota.
    """
    return "openfleet-gpu-lease-%d.scope" % number


def pod_account(name: str) -> str:
    """Return the text that replaces the account in a pod's lease.

    `name` is the namespace and name of its ResourceClaim. The text has a slash, which the name of an account cannot
    have.
    """
    return "pod:%s" % name


def job_account(job: str, user: str) -> str:
    """Return the text that replaces the account in a Slurm job's lease.

    The text has a slash, like the text for a pod.
    """
    return "job:%s/%s" % (user, job)


def user_of(account: str) -> str:
    """Return an account's user. For a Slurm job, a text replaces the account."""
    match = _JOB_ACCOUNT.fullmatch(account)
    return match.group(1) if match else account


def job_claim(job: str, boot: str) -> str:
    """Return the text that replaces a claim for a Slurm job.

    The text has a slash, which the UID of a ResourceClaim cannot have. `boot` is the id of the host's boot. No job
    survives a reboot.
    """
    return "slurm/%s/%s" % (job, boot)


def job_of(claim: str | None) -> tuple[str, str] | None:
    """Return (job, boot) for a text from `job_claim`, or None for another text."""
    match = _JOB.fullmatch(claim or "")
    return (match.group(1), match.group(2)) if match else None


def is_lease_unit(name: str) -> bool:
    """Return whether a systemd unit runs a lease's programs.

    Only root can create a unit with such a name.
    """
    return _UNIT.fullmatch(name) is not None
