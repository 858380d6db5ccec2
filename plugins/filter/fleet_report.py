# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sum up the results of the layout module on all hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_report
short_description: Sum up the desired layouts, current layouts and changes of all hosts
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes the results of the module M(openfleet.gpu.layout) by host, and returns rows and totals for the report templates.
  - For a host without a driver, the plan from the catalogue of GPU models is used.
  - The result of each host is validated first. If it is not a valid result of the module, it is omitted, and the C(note) of the
    host has the reason.
options:
  _input:
    description: Result of the module by host name. A host without a result is reported as such.
    type: dict
    required: true
  planned:
    description: Whether the results are from a dry run. The summary then shows this.
    type: bool
    default: false
  warnings:
    description: Additional warnings by host, for example vulnerabilities of its driver.
    type: dict
    default: {}
  left_out:
    description: Hosts without a plan that the run left out, with the reason.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Print the totals
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: gpu_layout_result} | openfleet.gpu.fleet_report }}"
"""

RETURN = r"""
_value:
  description:
    - C(schema) is the version of this format. C(summary) is the totals in one line.
    - C(hosts) lists the hosts by name. Each has C(gpus) as the module returned them, C(gpus_expected) (number of GPUs that were
      planned from the catalogue because no driver answers), C(note) if there are no GPUs, C(warnings), and C(unmanaged) (a
      sentence for each GPU that no longer has an entry).
    - C(totals) has C(hosts), C(hosts_changed), C(hosts_left_out), C(gpus), C(gpus_changed), C(instances), C(create),
      C(destroy) and C(keep).
  type: dict
  sample:
    schema: 1
    hosts:
      - name: h100-01
        gpus:
          - index: 0
            uuid: GPU-5c89d3fa-0000-4000-8000-000000000001
            name: NVIDIA H100 80GB HBM3
            entry: gpu_layout[0]
            asked: 'mig: 1x 3g.40gb'
            before: MIG off, compute mode default
            after: 'MIG on: 3g.40gb@4'
            changed: true
            placement_units: 8
            instances:
              - profile: 3g.40gb
                placement: {start: 4, size: 4}
                mig_uuids: [MIG-19133713-a6c7-5679-b344-e85e51f7a482]
        gpus_expected: 0
        counts: {create: 1, destroy: 0, keep: 0, gpus_changed: 1}
        note: ''
        warnings: []
        unmanaged: []
    totals:
      create: 1
      destroy: 0
      keep: 0
      gpus_changed: 1
      hosts: 1
      hosts_left_out: 0
      hosts_changed: 1
      gpus: 1
      instances: 1
    summary: '1 GPU on 1 host, 1 MIG instance: 1 created, 0 destroyed, 0 kept; 1 GPU changed; 1 of 1 host changed'
"""

from collections.abc import Mapping

from ..module_utils.model import short_label
from ..plugin_utils import host_results
from ..plugin_utils.counted import counted
from ..plugin_utils.host_values import HostValueError, text, without_host

SCHEMA = 1
FROM_CATALOGUE = "no NVIDIA driver yet; planned from the model catalogue"
# Maximum number of warnings per host.
MOST_WARNINGS = 20
DONE = (
    "{gpus} on {hosts}, {instances}: {create} created, {destroy} destroyed, {keep} kept; "
    "{gpus_changed} changed; {hosts_changed} of {hosts} changed"
)
PLANNED = (
    "{gpus} on {hosts}, {instances} now: {create} to create, {destroy} to destroy, {keep} to keep; "
    "{gpus_changed} would change; {hosts_changed} of {hosts} would change"
)


def fleet_report(results, planned=False, warnings=None, left_out=None):
    """Return the report. See DOCUMENTATION."""
    warnings, left_out = warnings or {}, left_out or {}
    hosts = [
        _host(name, {"msg": "left out: %s" % left_out[name]} if name in left_out else result, warnings.get(name) or [])
        for name, result in results.items()
    ]
    totals = {count: sum(host["counts"].get(count) or 0 for host in hosts) for count in host_results.COUNTS}
    totals.update(
        hosts=len(hosts),
        hosts_left_out=len(left_out),
        hosts_changed=sum(bool(host["counts"].get("gpus_changed")) for host in hosts),
        gpus=sum(len(host["gpus"]) + host["gpus_expected"] for host in hosts),
        instances=sum(len(gpu["instances"]) for host in hosts for gpu in host["gpus"]),
    )
    nouns = {
        "gpus": counted(totals["gpus"], "GPU"),
        "hosts": counted(totals["hosts"], "host"),
        "instances": counted(totals["instances"], "MIG instance"),
        "gpus_changed": counted(totals["gpus_changed"], "GPU"),
    }
    expected = sum(bool(host["gpus_expected"]) for host in hosts)
    more = "; %d without a driver yet, planned from the model catalogue" % expected if expected else ""
    more += "; %d left out" % len(left_out) if left_out else ""
    unmanaged = sum(len(host["unmanaged"]) for host in hosts)
    more += "; %d GPU%s unmanaged" % (unmanaged, "" if unmanaged == 1 else "s") if unmanaged else ""
    return {
        "schema": SCHEMA,
        "hosts": hosts,
        "totals": totals,
        "summary": (PLANNED if planned else DONE).format(**{**totals, **nouns}) + more,
    }


def _host(name, result, warnings):
    try:
        # A host that the run did not reach has no result.
        read = host_results.layout(name, result) if isinstance(result, Mapping) else {}
    except HostValueError as error:
        read = {"msg": str(error)}
    gpus, counts, expected = read.get("gpus") or [], read.get("counts") or {}, 0
    note = "" if gpus else without_host(name, read.get("msg") or "nothing was applied on this host")
    forecast = read.get("forecast") or {}
    if forecast.get("checked"):
        note, counts, expected = FROM_CATALOGUE, forecast.get("counts") or {}, forecast.get("gpus") or 0
    # Warnings contain text from hosts, such as version numbers.
    warning_texts = [text(row) for row in warnings[:MOST_WARNINGS]] if isinstance(warnings, (list, tuple)) else []
    return {
        "name": name,
        "gpus": gpus,
        "gpus_expected": expected,
        "counts": counts,
        "note": note,
        "warnings": warning_texts,
        "unmanaged": [
            "%s: %s" % (short_label(gpu["index"], gpu["uuid"]), gpu["text"])
            for gpu in read.get("unmanaged") or []
            if gpu["action"] != "release"
        ],
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"fleet_report": fleet_report}
