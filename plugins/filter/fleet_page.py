# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of a run of site.yml as an HTML page."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_page
short_description: Write the report of a run of site.yml as an HTML page
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes the result of P(openfleet.gpu.fleet_report#filter) and returns one HTML page without scripts.
  - The page has a bar of instances for each GPU.
  - Values from hosts are inserted as text only.
options:
  _input:
    description: The report.
    type: dict
    required: true
  planned:
    description: Whether the report is from a dry run. The page then shows this.
    type: bool
    default: false
  made_at:
    description: Date and time that the page shows, for example V(2026-11-22 06:00 UTC).
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Write the page
  ansible.builtin.copy:
    content: "{{ results | openfleet.gpu.fleet_report | openfleet.gpu.fleet_page }}"
    dest: /var/tmp/report.html
    mode: "0640"
"""

RETURN = r"""
_value:
  description: The HTML page.
  type: str
  sample: <!doctype html>...
"""

from ansible.errors import AnsibleFilterError


def fleet_page(report, planned=False, made_at=""):
    """Return the page. See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ansible_collections.openfleet.gpu.plugins.plugin_utils.fleet import page

    try:
        return page.to_text(report, planned, made_at)
    except (KeyError, TypeError, ValueError) as error:
        raise AnsibleFilterError("fleet_page: not a report: %r" % error) from error


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"fleet_page": fleet_page}
