# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus is to scrape, from what the inventory says of each GPU host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scrape_plan
short_description: Scrape targets of GPU hosts, from their inventory variables
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Works from variables alone, so that no host has to be reached.
  - A host whose C(dcgm_exporter_state) is V(absent) has no exporter, and is left out.
  - Returns problems rather than failing, so that all of them can be told at once.
options:
  _input:
    description: Names of the GPU hosts.
    type: list
    elements: str
    required: true
  hostvars:
    description: Ansible's C(hostvars).
    type: dict
    required: true
  here:
    description: Name of the monitoring host, which alone reaches an exporter that listens on its loopback interface.
    type: str
    default: ""
  user:
    description: User of the exporters' basic authentication. Empty takes the first one that a host has.
    type: str
    default: ""
  extra:
    description: Further targets, as Prometheus' file_sd has them.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Show what Prometheus would scrape
  ansible.builtin.debug:
    msg: "{{ (groups.gpu_hosts | openfleet.gpu.scrape_plan(hostvars)).targets }}"
"""

RETURN = r"""
_value:
  description:
    - C(targets), groups of targets for Prometheus' file_sd, the hosts' in order of their names;
      C(access), one entry for each way to get in (C(name), C(user), C(password)), which the targets name in the label
      C(__access__);
      C(hosts), the names of the hosts that have targets; C(problems), a list of messages.
  type: dict
"""

#: The jobs whose series the recording rules read.
GPU_JOB = "gpu_exporter"
HOST_JOB = "gpu_host"
#: Exporters that nobody asks for a password.
OPEN = "open"

#: Defaults of the role dcgm_exporter, for hosts of whose variables only the inventory's are known here.
ADDRESS = "127.0.0.1"
PORT = 9400
#: A host's own loopback interface, as it is by default. Any other address was named by somebody who knows who reaches it.
OWN_LOOPBACK = ("127.0.0.1", "::1", "localhost")
ALL_ADDRESSES = ("", "0.0.0.0", "::", "*")
RESERVED = ("host", "job")


def scrape_plan(hosts, hostvars, here="", user="", extra=()):
    """See DOCUMENTATION."""
    plan = {"targets": [], "access": [{"name": OPEN, "user": "", "password": ""}], "hosts": [], "problems": []}
    for host in sorted(hosts):
        variables = hostvars[host]
        if variables.get("dcgm_exporter_state", "present") == "absent":
            continue
        plan["hosts"].append(host)
        labels = _labels(plan, host, variables)
        _gpu_target(plan, host, variables, labels, here, user)
        _host_target(plan, host, variables, labels)
    for group in extra:
        labels = {"job": GPU_JOB, "__access__": OPEN, **group.get("labels", {})}
        plan["targets"].append({"targets": list(group["targets"]), "labels": labels})
    return plan


def _labels(plan, host, variables):
    own = {str(name): str(value) for name, value in (variables.get("gpu_monitoring_labels") or {}).items()}
    for name in sorted(set(own).intersection(RESERVED)):
        plan["problems"].append(
            "%s: gpu_monitoring_labels has the label %s, which is the collection's own. Give it another name."
            % (host, name)
        )
    return own


def _gpu_target(plan, host, variables, labels, here, user):
    listen = str(variables.get("dcgm_exporter_listen_address", ADDRESS))
    tls = bool(variables.get("dcgm_exporter_tls_certificate"))
    address = str(variables.get("gpu_monitoring_address") or "")
    if not address:
        if listen in OWN_LOOPBACK and host != here:
            plan["problems"].append(
                "%s: its exporter listens on %s, which no other host reaches. Set dcgm_exporter_listen_address to an address "
                "of the host, or gpu_monitoring_address to what leads there, as a tunnel's end." % (host, listen)
            )
        # Certificates are of names.
        address = host if tls or listen in ALL_ADDRESSES else listen
        if host == here and listen in OWN_LOOPBACK and not tls:
            address = listen
    access = _access(plan, host, variables.get("dcgm_exporter_basic_auth_users") or {}, user)
    port = variables.get("dcgm_exporter_port", PORT)
    plan["targets"].append(_group(GPU_JOB, host, address, port, "https" if tls else "http", access, labels))


def _host_target(plan, host, variables, labels):
    port = int(variables.get("gpu_monitoring_host_exporter_port") or 0)
    if port:
        address = str(variables.get("gpu_monitoring_address") or host)
        plan["targets"].append(_group(HOST_JOB, host, address, port, "http", OPEN, labels))


def _group(job, host, address, port, scheme, access, labels):
    where = "[%s]" % address if ":" in address else address
    own = {"job": job, "host": host, "__scheme__": scheme, "__access__": access}
    return {"targets": ["%s:%s" % (where, port)], "labels": {**labels, **own}}


def _access(plan, host, users, user):
    """The name of the entry by which the host lets Prometheus in; hosts with the same user and password share one."""
    if not users:
        return OPEN
    name = user or next(iter(users))
    if name not in users:
        plan["problems"].append(
            "%s: gpu_monitoring_scrape_user is %s, and dcgm_exporter_basic_auth_users has only %s. Add that user there, or "
            "name one of these." % (host, name, ", ".join(users))
        )
        return OPEN
    for entry in plan["access"]:
        if (entry["user"], entry["password"]) == (name, str(users[name])):
            return entry["name"]
    # The number alone: a name made of the password would tell something of it.
    entry = {"name": "password-%d" % len(plan["access"]), "user": str(name), "password": str(users[name])}
    plan["access"].append(entry)
    return entry["name"]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"scrape_plan": scrape_plan}
