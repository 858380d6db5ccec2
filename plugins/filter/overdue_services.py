# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which services have not been told of files that were written for them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: overdue_services
short_description: Services that have not been told of files that were written for them
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - A run that is cut off between its writing and its handlers leaves a service with what it had before, and the next run
    finds the files right. This finds such services by the times of their files.
options:
  _input:
    description:
      - What may be overdue. C(service), the unit's name; C(files), their paths; C(handler), what makes up for it; C(since),
        the property of the unit that says when it took its files last, or V(loaded).
    type: list
    elements: dict
    required: true
  shown:
    description: What C(systemctl show --timestamp=unix) says of the units.
    type: str
    default: ""
  times:
    description: When each file was written, in seconds since 1970, by its path.
    type: dict
    required: true
  loaded:
    description: When Prometheus took its configuration, in its own words. Empty where that is not known.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show what a run would make up for
  ansible.builtin.debug:
    msg: >-
      {{ [{'service': 'prometheus', 'files': ['/etc/systemd/system/prometheus.service.d/openfleet-gpu.conf'],
           'handler': 'Restart it', 'since': 'ActiveEnterTimestamp'}]
         | openfleet.gpu.overdue_services(shown.stdout, {}) }}
"""

RETURN = r"""
_value:
  description: The entries of the input that are overdue.
  type: list
  elements: dict
"""

import calendar
import re
import time

#: The unit's start: what a restart makes newer, and a reload does not.
START = "ActiveEnterTimestamp"
LOADED = "loaded"


def overdue_services(services, shown="", times=None, loaded=""):
    """See DOCUMENTATION."""
    units = {unit["Id"]: unit for unit in map(_properties, re.split(r"\n\s*\n", shown)) if "Id" in unit}
    overdue = []
    for entry in services:
        unit = units.get("%s.service" % entry["service"].removesuffix(".service"), {})
        since = _prometheus_time(loaded) if entry["since"] == LOADED else _unix_time(unit.get(entry["since"], ""))
        written = [float(times[path]) for path in entry["files"] if path in (times or {})]
        # Services tell whole seconds; within one a file counts as the older, as it is in a run that ends well.
        newer = since is not None and any(int(one) > since for one in written)
        if newer or (entry["since"] == START and unit.get("NeedDaemonReload") == "yes"):
            overdue.append(entry)
    return overdue


def _properties(text):
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _unix_time(text):
    """Of `@1700000000`; None of a unit that was never up."""
    found = re.fullmatch(r"@(\d+)", text)
    return int(found[1]) if found else None


def _prometheus_time(text):
    """Of RFC 3339 in UTC, to the second; None of anything else."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|\+00:00)$", text)
    return calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) if found else None


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"overdue_services": overdue_services}
