# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the versions of the driver and container toolkit that fix vulnerabilities.

Source: https://github.com/NVIDIA/product-security. Each bulletin is in YEAR/ID/ID.md ("Security Updates", column
"Updated Version"). Driver versions are those for Tesla GPUs on Linux. Last update: 2026-11-23. A test compares this
table with docs/security-versions.md.
"""

from __future__ import annotations

import re

from ..errors import PlanError
from ..frozen import frozen

#: Policies for a vulnerable version: report it, refuse to install it, or accept it.
WARN, REFUSE, ACCEPT = POLICIES = ("warn", "refuse", "accept")


@frozen
class Bulletin:
    """An NVIDIA security bulletin: its number and the date of its last revision."""

    number: int
    revised: str

    @property
    def url(self) -> str:
        # The folder has the year of the first publication, which equals the year of the last revision for all bulletins
        # in this file.
        return f"https://github.com/NVIDIA/product-security/blob/main/{self.revised[:4]}/{self.number}/{self.number}.md"

    def __str__(self) -> str:
        return "NVIDIA's security bulletin %d of %s" % (self.number, self.revised)


@frozen
class Fix:
    """A version, and the vulnerabilities that it is the first to fix."""

    version: str
    bulletin: Bulletin
    vulnerabilities: tuple[str, ...] = ()


#: Fixes in the container toolkit, oldest first.
TOOLKIT = (
    Fix("1.16.2", Bulletin(5582, "2024-09-25"), ("CVE-2024-0132", "CVE-2024-0133")),
    Fix("1.17.0", Bulletin(5585, "2024-11-05"), ("CVE-2024-0134",)),
    Fix("1.17.1", Bulletin(5599, "2025-01-14"), ("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137")),
    Fix("1.17.4", Bulletin(5616, "2025-02-11"), ("CVE-2025-23359",)),
    Fix("1.17.8", Bulletin(5659, "2025-08-12"), ("CVE-2025-23266", "CVE-2025-23267")),
    Fix("1.19.1", Bulletin(5850, "2026-06-30"), ("CVE-2026-24260",)),
)

_JANUARY, _MAY, _SEPTEMBER = Bulletin(5747, "2026-01-28"), Bulletin(5821, "2026-05-21"), Bulletin(5861, "2026-09-30")
#: The last fix for each driver branch. Each fixes dozens of vulnerabilities, which are not listed here.
DRIVER = {
    535: Fix("535.309.01", _MAY),
    570: Fix("570.211.01", _JANUARY),
    580: Fix("580.178.04", _SEPTEMBER),
    590: Fix("590.48.01", _JANUARY),
    595: Fix("595.91.07", _SEPTEMBER),
    610: Fix("610.57.04", _SEPTEMBER),
    615: Fix("615.71.09", _SEPTEMBER),
}
#: The latest driver bulletin, and the branches that it fixes. Messages tell users of older branches to upgrade to one
#: of these.
LATEST = max((fix.bulletin for fix in DRIVER.values()), key=lambda bulletin: bulletin.revised)
MAINTAINED = tuple(sorted(branch for branch, fix in DRIVER.items() if fix.bulletin == LATEST))


def toolkit(version: str) -> str:
    """Return the known vulnerabilities of a toolkit version as a sentence, or ""."""
    open_ones = [fix for fix in TOOLKIT if _numbers(version) < _numbers(fix.version)]
    if not open_ones:
        return ""
    names = ", ".join(name for fix in open_ones for name in fix.vulnerabilities)
    last = open_ones[-1]
    return "the container toolkit %s has vulnerabilities that %s fixes (%s; %s)" % (
        version,
        last.version,
        names,
        last.bulletin,
    )


def driver(version: str) -> str:
    """Return the known vulnerabilities of a driver version as a sentence, or ""."""
    if not version:
        return ""
    branch = int(version.split(".")[0])
    fix = DRIVER.get(branch)
    if fix is not None and _numbers(version) < _numbers(fix.version):
        text = "the driver %s has vulnerabilities that %s fixes (%s)" % (version, fix.version, fix.bulletin)
        return text if branch in MAINTAINED else "%s, and %s" % (text, _not_maintained(branch))
    if branch < max(MAINTAINED) and branch not in MAINTAINED:
        return "the driver is %s, and %s" % (version, _not_maintained(branch))
    return ""


def judged(problem: str, policy: str, variable: str, cure: str) -> str:
    """Return the problem if the policy is to report it.

    Returns "" if the policy is to accept the version. Raises PlanError if the policy is to refuse it.
    """
    if problem and policy == REFUSE:
        raise PlanError(
            variable, problem, "%s Or set %s: warn to get only a warning. Nothing was changed." % (cure, variable)
        )
    return "" if policy == ACCEPT else problem


def _not_maintained(branch: int) -> str:
    branches = ", ".join(map(str, MAINTAINED))
    return "branch %d no longer receives fixes: %s has fixes only for branches %s" % (branch, LATEST, branches)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, without the package revision.

    For example, 1.17.8-1 becomes (1, 17, 8).
    """
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0]))
