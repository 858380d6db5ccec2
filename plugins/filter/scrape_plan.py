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
  - A host has an exporter where its variables say so with C(dcgm_exporter_source), C(dcgm_exporter_state),
    C(dcgm_exporter_listen_address) or C(gpu_monitoring_address), and C(dcgm_exporter_state) is not V(absent). Others are left
    out.
  - Returns problems rather than failing, so that all of them can be told at once.
  - Problems are what Prometheus would refuse, what it could not reach, an address and port twice in one job, and labels that the
    rules of the role gpu_monitoring read or write.
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
      C(hosts), the names of the hosts that have targets; C(unwatched), of those whose variables speak of no exporter;
      C(problems), a list of messages.
  type: dict
"""

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence

from ansible.errors import AnsibleError
from jinja2.exceptions import TemplateError, UndefinedError
from jinja2.runtime import Undefined

#: The jobs whose series the recording rules read.
GPU_JOB = "gpu_exporter"
HOST_JOB = "gpu_host"
#: Exporters without a password.
OPEN = "open"

#: Defaults of the role dcgm_exporter, for hosts of whose variables only the inventory's are known here.
ADDRESS = "127.0.0.1"
PORT = 9400
#: By one of these a host's variables say that it has an exporter. By the first two site.yml brings one.
TELLING = ("dcgm_exporter_source", "dcgm_exporter_state", "dcgm_exporter_listen_address", "gpu_monitoring_address")
#: A host's own loopback interface, as it is by default. Any other address was named on purpose.
OWN_LOOPBACK = ("127.0.0.1", "::1", "localhost")
ALL_ADDRESSES = ("", "0.0.0.0", "::", "*")
RESERVED = ("host", "job")
#: What the role's rules read or write; files/rules, files/alerts, and those of prices. As a site's label of a target each of
#: them would pass for an exporter's, or keep an exporter's own from the rules. A test compares them with the files.
RULES_LABELS = (
    *("DCGM_FI_DRIVER_VERSION", "GPU_I_ID", "GPU_I_PROFILE", "Hostname", "UUID", "card_model", "card_series"),
    *("cause", "class", "daemon", "dcu_pod_name", "device_id", "die", "driver", "driver_version"),
    *("exported_Hostname", "exported_hostname", "exported_pod"),
    *("gpu", "gpu_compute_partition_type", "gpu_id", "gpu_index", "gpu_partition_id", "gpu_type", "gpu_uuid"),
    *("host", "hostname", "hpc_job", "id", "instance", "job", "job_id", "kind", "link_index"),
    *("metaxlink", "mig_instance", "mig_profile", "minor_number", "mlu", "model", "modelName", "model_name"),
    *("name", "node", "node_name", "pci_bus_id", "pcie_bw_type", "pod", "pod_name"),
    *("reason", "serial_number", "series", "severity", "tenant", "type", "used_by"),
    *("uuid", "vdie_id", "vendor", "version", "vf", "workload", "xid"),
)
#: Prometheus makes the address the label instance. With that and the job the rules match what an exporter says of a GPU.
TWICE = "Rules know an exporter by its job and address: its GPUs would pass for those of both."
#: https://prometheus.io/docs/concepts/data_model/#metric-names-and-labels
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Of Prometheus' own labels those that say how a target is scraped; the others are its and the role's.
#: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config
HOW = re.compile(r"__scheme__|__metrics_path__|__param_[a-zA-Z_][a-zA-Z0-9_]*")


def scrape_plan(hosts, hostvars, here="", user="", extra=()):
    """See DOCUMENTATION."""
    plan = {
        "targets": [],
        "access": [{"name": OPEN, "user": "", "password": ""}],
        "exporters_labels": [name for name in RULES_LABELS if name not in (*RESERVED, "instance")],
        "hosts": [],
        "unwatched": [],
        "problems": [],
    }
    #: By job and address, whose it is.
    taken = {}
    for name in sorted(hosts):
        host = _Host(plan, name, hostvars[name])
        if not any(host.says(variable) for variable in TELLING):
            plan["unwatched"].append(name)
        elif host.read("dcgm_exporter_state", "present") != "absent":
            plan["hosts"].append(name)
            labels = _labels(plan, "%s: gpu_monitoring_labels" % name, host.read("gpu_monitoring_labels", {}), RESERVED)
            named = host.address("gpu_monitoring_address", "")
            _gpu_target(plan, taken, host, (here, user), named, labels)
            _host_target(plan, taken, host, named, labels)
    for number, group in enumerate(extra):
        _further_targets(plan, taken, "gpu_monitoring_extra_targets[%d]" % number, group)
    return plan


class _Host:
    """The variables of a GPU host. One that cannot be worked out becomes a problem, and its default stands for it."""

    def __init__(self, plan, name, variables):
        self.plan, self.name, self.variables = plan, name, variables

    def says(self, variable):
        return variable in self.variables

    def read(self, variable, default):
        try:
            value = _whole(self.variables.get(variable, default))
        except (TemplateError, AnsibleError) as error:
            self.plan["problems"].append(
                "%s: %s cannot be worked out (%s). Facts of GPU hosts are not known here, for none of them is asked for "
                "anything: give it a value that the inventory alone tells%s."
                % (
                    self.name,
                    variable,
                    " ".join(str(error).split()).rstrip("."),
                    ", or set gpu_monitoring_address" if variable == "dcgm_exporter_listen_address" else "",
                )
            )
            return default
        return default if value is None else value

    def port(self, variable, default):
        value = self.read(variable, default)
        try:
            port = int(value)
        except (TypeError, ValueError):
            port = -1
        if not 0 <= port <= 65535:
            self.plan["problems"].append("%s: %s is %r, which is no port." % (self.name, variable, value))
            return default
        return port

    def address(self, variable, default):
        """A name or an address, an IPv6 one without its brackets. The port comes from elsewhere."""
        said = str(self.read(variable, default))
        address = said[1:-1] if said.startswith("[") and said.endswith("]") else said
        if "/" in address or (":" in address and not _is_ipv6(address)):
            self.plan["problems"].append(
                "%s: %s is %s, which is no name or address alone. Give it without scheme, port and path; the ports are "
                "dcgm_exporter_port and gpu_monitoring_host_exporter_port." % (self.name, variable, said)
            )
        return address


def _is_ipv6(address):
    try:
        return bool(ipaddress.IPv6Address(address))
    except ValueError:
        return False


def _whole(value):
    """A value with all that is in it: Ansible works out a part when it is looked at, and what cannot be is an object too."""
    if isinstance(value, Undefined):
        # Ansible's own say so themselves.
        raise UndefinedError(str(value) or "it is undefined")
    if isinstance(value, Mapping):
        return {str(key): _whole(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_whole(one) for one in value]
    return value


def _labels(plan, where, labels, reserved, allowed=None):
    """Labels with text as values, those alone that Prometheus takes. One wrong name and it refuses its targets, all of them."""
    if not isinstance(labels, Mapping):
        plan["problems"].append("%s is %r. Give names and values, as {cluster: one}." % (where, labels))
        return {}
    good = {}
    for name, value in sorted((str(name), value) for name, value in labels.items()):
        if name in reserved:
            problem = "the label %s, which is the collection's own. Give it another name." % name
        elif name in RULES_LABELS and name not in RESERVED:
            problem = "the label %s, which the rules read or write. Give it another name." % name
        elif not LABEL.fullmatch(name):
            problem = "the label %s. A name has letters, digits and _, and begins with no digit." % name
        elif name.startswith("__") and not (allowed and allowed.fullmatch(name)):
            problem = "the label %s. Names with __ in front are Prometheus' own." % name
        elif value is None or isinstance(value, (Mapping, list, tuple)):
            problem = "no text in the label %s, but %r. Give it a word or a number." % (name, value)
        else:
            good[name] = str(value)
            continue
        plan["problems"].append("%s has %s" % (where, problem))
    return good


def _gpu_target(plan, taken, host, monitoring, named, labels):
    # The monitoring host, and the user as which it scrapes.
    here, user = monitoring
    tls = bool(host.read("dcgm_exporter_tls_certificate", ""))
    port = host.port("dcgm_exporter_port", PORT)
    problems, address = len(plan["problems"]), named
    if not address:
        listen = host.address("dcgm_exporter_listen_address", ADDRESS)
        own = listen in OWN_LOOPBACK and problems == len(plan["problems"])
        if own and host.name != here:
            plan["problems"].append(
                "%s: its exporter listens on %s, which no other host reaches. Set dcgm_exporter_listen_address to an address "
                "of the host, or gpu_monitoring_address to what leads there, as a tunnel's end." % (host.name, listen)
            )
        elif own and tls:
            plan["problems"].append(
                "%s: its exporter has a certificate and listens on %s, where https://%s:%s is not. Set "
                "dcgm_exporter_listen_address to the address of that name, or gpu_monitoring_address to a name that leads to "
                "%s and that the certificate is of." % (host.name, listen, host.name, port, listen)
            )
        # Certificates are of names.
        address = host.name if tls or listen in ALL_ADDRESSES else listen
        if host.name == here and listen in OWN_LOOPBACK and not tls:
            address = listen
    access = _access(plan, host, user)
    target = _group(GPU_JOB, host.name, ("https" if tls else "http", address, port), access, labels)
    plan["targets"].append(target)
    # Where the address is a problem already, that of another host may well be the same.
    if problems == len(plan["problems"]):
        _take_for_host(plan, taken, host, target, "exporter", "dcgm_exporter_port")


def _host_target(plan, taken, host, named, labels):
    port = host.port("gpu_monitoring_host_exporter_port", 0)
    if port:
        target = _group(HOST_JOB, host.name, ("http", named or host.name, port), OPEN, labels)
        plan["targets"].append(target)
        _take_for_host(plan, taken, host, target, "node_exporter", "gpu_monitoring_host_exporter_port")


def _take_for_host(plan, taken, host, target, exporter, variable):
    (address,) = target["targets"]
    other = _take(taken, target["labels"]["job"], address, host.name)
    if other:
        plan["problems"].append(
            "%s: its %s is scraped at %s, and so is %s's. %s Give it another gpu_monitoring_address or %s."
            % (host.name, exporter, address, other, TWICE, variable)
        )


def _take(taken, job, address, owner):
    """Who else has this address in this job already, if anybody. Of one group Prometheus takes it once."""
    other = taken.setdefault((job, address), owner)
    return other if other != owner else None


def _group(job, host, endpoint, access, labels):
    scheme, address, port = endpoint
    where = "[%s]" % address if ":" in address else address
    own = {"job": job, "host": host, "__scheme__": scheme, "__access__": access}
    return {"targets": ["%s:%s" % (where, port)], "labels": {**labels, **own}}


def _further_targets(plan, taken, where, group):
    targets = group.get("targets") if isinstance(group, Mapping) else None
    if not targets or not isinstance(targets, (list, tuple)):
        plan["problems"].append(
            '%s has no targets. Give addresses with ports, as {targets: ["npu-01:8082"], labels: {host: npu-01}}.'
            % where
        )
        return
    labels = _labels(plan, where, group.get("labels") or {}, (), HOW)
    labels = {"job": GPU_JOB, "__access__": OPEN, **labels}
    for one in targets:
        # Prometheus refuses what has a path in it.
        if not one or not isinstance(one, str) or "/" in one:
            plan["problems"].append(
                "%s has the target %r. Give an address with its port, as npu-01:8082." % (where, one)
            )
            continue
        other = _take(taken, labels["job"], one, where)
        if other:
            plan["problems"].append(
                "%s has the target %s, and so has %s. %s Leave one of them out." % (where, one, other, TWICE)
            )
    plan["targets"].append({"targets": [str(one) for one in targets], "labels": labels})


def _access(plan, host, user):
    """The name of the entry by which the host lets Prometheus in; hosts with the same user and password share one."""
    users = host.read("dcgm_exporter_basic_auth_users", {})
    if not users:
        return OPEN
    name = user or next(iter(users))
    if name not in users:
        plan["problems"].append(
            "%s: gpu_monitoring_scrape_user is %s, and dcgm_exporter_basic_auth_users has only %s. Add that user there, or "
            "name one of these." % (host.name, name, ", ".join(users))
        )
        return OPEN
    for entry in plan["access"]:
        if (entry["user"], entry["password"]) == (name, str(users[name])):
            return entry["name"]
    # Of the user and the first host that has it: a number would be another one when a host ahead of it goes, and a name made of
    # the password would tell something of it.
    digest = hashlib.sha256(("%s\0%s" % (name, host.name)).encode()).hexdigest()
    entry = {"name": "password-%s" % digest[:12], "user": str(name), "password": str(users[name])}
    plan["access"].append(entry)
    return entry["name"]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"scrape_plan": scrape_plan}
