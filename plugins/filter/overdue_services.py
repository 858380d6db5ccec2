# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find services that have not loaded their current files."""

from __future__ import annotations

DOCUMENTATION = r"""
name: overdue_services
short_description: Find services that have not loaded their current files
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - If a run is interrupted after it wrote files and before its handlers ran, services keep their old settings, and the next run
    finds nothing to change. This filter finds such services. It compares the modification times of files with the time of the
    service's last start or reload.
options:
  _input:
    description:
      - Services to check. Each has C(service) (name of the unit), C(files) (paths), C(handler) (the handler to run) and
        C(since). C(since) is the name of the unit's property with the time when the unit last loaded its files, or V(loaded) for
        the time in O(loaded).
    type: list
    elements: dict
    required: true
  shown:
    description: Output of C(systemctl show --timestamp=unix) for the units.
    type: str
    default: ""
  times:
    description: Modification times by path, in seconds since 1970.
    type: dict
    required: true
  loaded:
    description: Time when Prometheus last loaded its configuration, as reported by Prometheus' API. Empty if unknown.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show services that need a restart
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
  sample:
    - service: prometheus
      files: [/etc/systemd/system/prometheus.service.d/openfleet-gpu.conf]
      handler: Restart Prometheus
      since: ActiveEnterTimestamp
"""

import calendar
import re
import time

# Time of the unit's last start, which a restart changes and a reload does not.
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
        # Services report whole seconds. If a file was written in the same second, the service counts as up to date, as
        # after a successful run.
        newer = since is not None and any(int(time_written) > since for time_written in written)
        if newer or (entry["since"] == START and unit.get("NeedDaemonReload") == "yes"):
            overdue.append(entry)
    return overdue


def _properties(text):
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _unix_time(text):
    """Parse a time such as `@1700000000`. Return None if the unit never ran."""
    match = re.fullmatch(r"@(\d+)", text)
    return int(match[1]) if match else None


def _prometheus_time(text):
    """Parse a UTC time (RFC 3339) to whole seconds. Return None for any other text."""
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|\+00:00)$", text)
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) if match else None


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"overdue_services": overdue_services}
