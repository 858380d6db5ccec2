# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The versions that mend what NVIDIA has published of vulnerabilities: the one table of them, and what it says of a version.

From https://github.com/NVIDIA/product-security, where each bulletin is YEAR/ID/ID.md ("Security Updates": "Updated Version", of
the driver for Tesla on Linux). As of 2026-11-23; docs/security-versions.md shows it, and a test compares the two.
"""

from __future__ import annotations

import re

from .errors import PlanError
from .frozen import frozen

#: What the roles make of a version that is too old: tell of it, refuse to install it, or take it without a word.
WARN, REFUSE, ACCEPT = POLICIES = ("warn", "refuse", "accept")


@frozen
class Bulletin:
    """A security bulletin of NVIDIA's, by its number and the day of its last revision."""

    number: int
    revised: str

    @property
    def url(self) -> str:
        # Folders are by the year of the first publication, which for all of these is that of the last revision.
        return f"https://github.com/NVIDIA/product-security/blob/main/{self.revised[:4]}/{self.number}/{self.number}.md"

    def __str__(self) -> str:
        return "NVIDIA's security bulletin %d of %s" % (self.number, self.revised)


@frozen
class Fix:
    """The first version without these vulnerabilities."""

    version: str
    bulletin: Bulletin
    vulnerabilities: tuple[str, ...] = ()


#: Of the container toolkit, oldest first.
TOOLKIT = (
    Fix("1.16.2", Bulletin(5582, "2024-09-25"), ("CVE-2024-0132", "CVE-2024-0133")),
    Fix("1.17.0", Bulletin(5585, "2024-11-05"), ("CVE-2024-0134",)),
    Fix("1.17.1", Bulletin(5599, "2025-01-14"), ("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137")),
    Fix("1.17.4", Bulletin(5616, "2025-02-11"), ("CVE-2025-23359",)),
    Fix("1.17.8", Bulletin(5659, "2025-08-12"), ("CVE-2025-23266", "CVE-2025-23267")),
    Fix("1.19.1", Bulletin(5850, "2026-06-30"), ("CVE-2026-24260",)),
)

_JANUARY, _MAY, _SEPTEMBER = Bulletin(5747, "2026-01-28"), Bulletin(5821, "2026-05-21"), Bulletin(5861, "2026-09-30")
#: Of the driver, by branch: the last bulletin that names a version of it. Each mends dozens, so that they are not listed here.
DRIVER = {
    535: Fix("535.309.01", _MAY),
    570: Fix("570.211.01", _JANUARY),
    580: Fix("580.178.04", _SEPTEMBER),
    590: Fix("590.48.01", _JANUARY),
    595: Fix("595.91.07", _SEPTEMBER),
    610: Fix("610.57.04", _SEPTEMBER),
    615: Fix("615.71.09", _SEPTEMBER),
}
#: The last bulletin of the driver. A branch that it does not name, older than the newest that it does, is mended no more: it
#: tells users of such to upgrade to another one.
LATEST = max((fix.bulletin for fix in DRIVER.values()), key=lambda bulletin: bulletin.revised)
MENDED = tuple(sorted(branch for branch, fix in DRIVER.items() if fix.bulletin == LATEST))


def toolkit(version: str) -> str:
    """Return what is known against a version of the container toolkit, in a sentence; empty for nothing."""
    open_ones = [fix for fix in TOOLKIT if _numbers(version) < _numbers(fix.version)]
    if not open_ones:
        return ""
    names = ", ".join(name for fix in open_ones for name in fix.vulnerabilities)
    last = open_ones[-1]
    return "the container toolkit %s has vulnerabilities that %s mends (%s; %s)" % (
        version,
        last.version,
        names,
        last.bulletin,
    )


def driver(version: str) -> str:
    """Return what is known against a version of the driver, in a sentence; empty for nothing."""
    if not version:
        return ""
    branch = int(version.split(".")[0])
    fix = DRIVER.get(branch)
    if fix is not None and _numbers(version) < _numbers(fix.version):
        text = "the driver %s has vulnerabilities that %s mends (%s)" % (version, fix.version, fix.bulletin)
        return text if branch in MENDED else "%s, and %s" % (text, _not_mended(branch))
    if branch < max(MENDED) and branch not in MENDED:
        return "the driver is %s, and %s" % (version, _not_mended(branch))
    return ""


def judged(problem: str, policy: str, variable: str, cure: str) -> str:
    """Return what is to be told of it under the policy. Raises PlanError where it is to be refused."""
    if problem and policy == REFUSE:
        raise PlanError(variable, problem, "%s Or say warn, to be told and no more. Nothing was changed." % cure)
    return "" if policy == ACCEPT else problem


def _not_mended(branch: int) -> str:
    branches = ", ".join(map(str, MENDED))
    return "branch %d is none of those that %s mends (%s)" % (branch, LATEST, branches)


def _numbers(version: str) -> tuple[int, ...]:
    """Compares as versions do. A package's revision is no part of it: 1.17.8-1 is 1.17.8."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0]))
