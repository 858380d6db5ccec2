# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a run of site.yml as a page."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_page
short_description: Draw the report of a run of site.yml as a page
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes what P(openfleet.gpu.fleet_report#filter) returned and returns one HTML page without scripts, in which each GPU is a bar
    of its instances.
  - What hosts sent stands in it as text, whatever it is.
options:
  _input:
    description: The report.
    type: dict
    required: true
  planned:
    description: Whether it is of a dry run, so that the page says so.
    type: bool
    default: false
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
  description: The page.
  type: str
"""

from ansible.errors import AnsibleFilterError


def fleet_page(report, planned=False):
    """Return the page; see DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ansible_collections.openfleet.gpu.plugins.plugin_utils.fleet import page

    try:
        return page.to_text(report, planned)
    except (KeyError, TypeError, ValueError) as error:
        raise AnsibleFilterError("fleet_page: not a report: %r" % error) from error


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"fleet_page": fleet_page}
