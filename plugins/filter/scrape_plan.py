# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create Prometheus scrape targets from the variables of GPU hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scrape_plan
short_description: Make scrape targets of GPU hosts from their inventory variables
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Uses only variables, so it contacts no host.
  - A host is scraped if it has one of the variables C(dcgm_exporter_source), C(dcgm_exporter_state),
    C(dcgm_exporter_listen_address) and C(gpu_monitoring_address), and C(dcgm_exporter_state) is not V(absent).
  - Returns problems instead of failing, so that all of them are reported at once.
  - Problems are settings that Prometheus would refuse, addresses that it could not reach, duplicate addresses in one job, and
    labels that the rules of the role gpu_monitoring read or write.
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
    description: Name of the monitoring host. Only the exporter on this host may listen on the loopback interface.
    type: str
    default: ""
  user:
    description: User for basic authentication. If empty, the first user of each host is used.
    type: str
    default: ""
  extra:
    description: Additional targets, in the format of Prometheus' file_sd.
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
  description: Targets for Prometheus.
  type: dict
  sample:
    targets:
      - targets: ['10.0.0.11:9400']
        labels: {job: gpu_exporter, host: h100-01, __scheme__: http, __access__: open}
    access: [{name: open, user: '', password: ''}]
    hosts: [h100-01]
    unwatched: []
    problems: []
  contains:
    targets:
      description: >-
        Groups of targets in the format of Prometheus' file_sd, sorted by host name, each with C(targets) and C(labels). The
        label C(__access__) has the name of an entry of C(access).
      type: list
      elements: dict
    access:
      description: >-
        One entry for each pair of user and password, with C(name), C(user) and C(password).
      type: list
      elements: dict
    exporters_labels:
      description: >-
        Labels that the recording rules read. If an exporter sends one with markup in its value, Prometheus drops the label.
      type: list
      elements: str
    hosts:
      description: >-
        Hosts with targets.
      type: list
      elements: str
    unwatched:
      description: >-
        Hosts without a variable of an exporter.
      type: list
      elements: str
    problems:
      description: >-
        Messages. Empty if all targets are valid.
      type: list
      elements: str
"""

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence

from ansible.errors import AnsibleError
from jinja2.exceptions import TemplateError, UndefinedError
from jinja2.runtime import Undefined

# The job whose series the recording rules read.
GPU_JOB = "gpu_exporter"
HOST_JOB = "gpu_host"
# Name of the access entry for exporters without a password.
OPEN = "open"

# Defaults of the role dcgm_exporter, which hostvars do not have.
ADDRESS = "127.0.0.1"
PORT = 9400
# A host with one of these variables has an exporter. With one of the first two, site.yml installs it.
EXPORTER_VARIABLES = (
    "dcgm_exporter_source",
    "dcgm_exporter_state",
    "dcgm_exporter_listen_address",
    "gpu_monitoring_address",
)
# Loopback addresses that are defaults. The site chose any other loopback address.
OWN_LOOPBACK = ("127.0.0.1", "::1", "localhost")
ALL_ADDRESSES = ("", "0.0.0.0", "::", "*")
RESERVED = ("host", "job")
# Labels that the role's rules read or write (files/rules, files/alerts, and the price rules). If a site set such a
# label for a target, rules would mistake it for the exporter's, or would not see the exporter's. A test compares this
# list with the files.
RULES_LABELS = (
    *("DCGM_FI_DRIVER_VERSION", "GPU_I_ID", "GPU_I_PROFILE", "Hostname", "UUID"),
    *("account", "annotation_volcano_sh_node_vgpu_handshake", "card_model", "card_series", "cause", "class"),
    *(
        "container",
        "container_index",
        "daemon",
        "dcu_pod_name",
        "device_id",
        "device_index",
        "device_type",
        "device_uuid",
    ),
    *("die", "driver", "driver_version", "engine", "exported_Hostname", "exported_container", "exported_hostname"),
    *("exported_namespace", "exported_node", "exported_pod", "gpu", "gpu_compute_partition_type", "gpu_id"),
    *("gpu_index", "gpu_partition_id", "gpu_type", "gpu_uuid", "host", "hostname", "hpc_job", "id", "instance"),
    *("job", "job_id", "kind", "le", "lease", "link_index", "metaxlink", "mig_instance", "mig_profile", "minor_number"),
    *("mlu", "model", "modelName", "model_name", "name", "namespace", "node", "node_name", "on_host"),
    *(
        "owner_team",
        "owner_user",
        "pci_bus_id",
        "pcie_bw_type",
        "pod",
        "pod_name",
        "reason",
        "serial_number",
        "series",
        "severity",
        "tenant",
        "type",
    ),
    *("used_by", "uuid", "vdevice_index", "vdie_id", "vendor", "version", "vf", "workload", "xid"),
)
# Prometheus stores the address in the label `instance`. Rules join an exporter's series by this label and the job.
TWICE = "Rules identify an exporter by job and address, so its GPUs would be attributed to both."
#: https://prometheus.io/docs/concepts/data_model/#metric-names-and-labels
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# Prometheus' own labels that configure how a target is scraped. All other labels with a double underscore are reserved
# for Prometheus and the role. https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config
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
    # The owner of each address, by job and address.
    taken = {}
    for name in sorted(hosts):
        host = _Host(plan, name, hostvars[name])
        if not any(host.has(variable) for variable in EXPORTER_VARIABLES):
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
    """A GPU host's variables.

    For one that cannot be resolved, a problem is added to the plan, and the default is used.
    """

    def __init__(self, plan, name, variables):
        self.plan, self.name, self.variables = plan, name, variables

    def has(self, variable):
        return variable in self.variables

    def read(self, variable, default):
        try:
            value = _whole(self.variables.get(variable, default))
        except (TemplateError, AnsibleError) as error:
            self.plan["problems"].append(
                "%s: %s cannot be resolved (%s). Facts of GPU hosts are not available here, because no GPU host is contacted. "
                "Set a value that does not depend on facts%s."
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
            self.plan["problems"].append(
                "%s: %s is %r, which is not a port. Set a number from 0 to 65535." % (self.name, variable, value)
            )
            return default
        return port

    def address(self, variable, default):
        """Return a host name or address without its port and without the brackets of IPv6."""
        value = str(self.read(variable, default))
        address = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        if "/" in address or (":" in address and not _is_ipv6(address)):
            self.plan["problems"].append(
                "%s: %s is %s, which is not a plain name or address. Remove scheme, port and path. Set ports with "
                "dcgm_exporter_port and gpu_monitoring_host_exporter_port." % (self.name, variable, value)
            )
        return address


def _is_ipv6(address):
    try:
        return bool(ipaddress.IPv6Address(address))
    except ValueError:
        return False


def _whole(value):
    """Resolve a value with all nested values. Raises UndefinedError.

    By default, Ansible resolves nested values only when they are read.
    """
    if isinstance(value, Undefined):
        # Ansible's undefined values contain a message.
        raise UndefinedError(str(value) or "it is undefined")
    if isinstance(value, Mapping):
        return {str(key): _whole(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_whole(item) for item in value]
    return value


def _labels(plan, where, labels, reserved, allowed=None):
    """Return valid labels as text. Add a problem for each invalid label.

    Prometheus refuses all targets if one label's name is invalid.
    """
    if not isinstance(labels, Mapping):
        plan["problems"].append("%s is %r. Set names and values, for example {cluster: one}." % (where, labels))
        return {}
    valid = {}
    for name, value in sorted((str(name), value) for name, value in labels.items()):
        if name in reserved:
            problem = "the label %s, which is reserved for the collection. Rename it." % name
        elif name in RULES_LABELS and name not in RESERVED:
            problem = "the label %s, which the rules read or write. Rename it." % name
        elif not LABEL.fullmatch(name):
            problem = "the label %s. Use only letters, digits and _, and no digit first." % name
        elif name.startswith("__") and not (allowed and allowed.fullmatch(name)):
            problem = "the label %s. Names that begin with __ are reserved for Prometheus. Rename it." % name
        elif value is None or isinstance(value, (Mapping, list, tuple)):
            problem = "the label %s with the value %r, which is not text. Set a word or a number." % (name, value)
        else:
            valid[name] = str(value)
            continue
        plan["problems"].append("%s has %s" % (where, problem))
    return valid


def _gpu_target(plan, taken, host, monitoring, named, labels):
    # `here` is the monitoring host, `user` its user for scrapes.
    here, user = monitoring
    tls = bool(host.read("dcgm_exporter_tls_certificate", ""))
    port = host.port("dcgm_exporter_port", PORT)
    problems, address = len(plan["problems"]), named
    if not address:
        listen = host.address("dcgm_exporter_listen_address", ADDRESS)
        own = listen in OWN_LOOPBACK and problems == len(plan["problems"])
        if own and host.name != here:
            plan["problems"].append(
                "%s: its exporter listens on %s, which other hosts cannot reach. Set dcgm_exporter_listen_address to an address "
                "of the host, or gpu_monitoring_address to an address that forwards to it, such as the end of a tunnel."
                % (host.name, listen)
            )
        elif own and tls:
            plan["problems"].append(
                "%s: its exporter has a certificate and listens on %s, so https://%s:%s does not reach it. Set "
                "dcgm_exporter_listen_address to the address of that name, or gpu_monitoring_address to a name that resolves "
                "to %s and is in the certificate." % (host.name, listen, host.name, port, listen)
            )
        # Certificates are for host names, not for addresses.
        address = host.name if tls or listen in ALL_ADDRESSES else listen
        if host.name == here and listen in OWN_LOOPBACK and not tls:
            address = listen
    access = _access(plan, host, user)
    target = _group(GPU_JOB, host.name, ("https" if tls else "http", address, port), access, labels)
    plan["targets"].append(target)
    # Skip this check if the address already has a problem, because a duplicate probably has the same cause.
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
            "%s: its %s is scraped at %s, like that of %s. %s Set another gpu_monitoring_address or %s."
            % (host.name, exporter, address, other, TWICE, variable)
        )


def _take(taken, job, address, owner):
    """Register a job's address. If another owner has it, return that owner.

    An owner may register its own address again.
    """
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
            "%s has no targets. Set addresses with ports, for example "
            '{targets: ["npu-01:8082"], labels: {host: npu-01}}.' % where
        )
        return
    labels = _labels(plan, where, group.get("labels") or {}, (), HOW)
    labels = {"job": GPU_JOB, "__access__": OPEN, **labels}
    for target in targets:
        # Prometheus refuses targets with a path.
        if not target or not isinstance(target, str) or "/" in target:
            plan["problems"].append(
                "%s has the target %r. Set an address with its port, for example npu-01:8082." % (where, target)
            )
            continue
        other = _take(taken, labels["job"], target, where)
        if other:
            plan["problems"].append(
                "%s has the target %s, which %s also has. %s Remove one of them." % (where, target, other, TWICE)
            )
    plan["targets"].append({"targets": [str(target) for target in targets], "labels": labels})


def _access(plan, host, user):
    """Return the name of the access entry for the host.

    Hosts with the same user and password share an entry.
    """
    users = host.read("dcgm_exporter_basic_auth_users", {})
    if not users:
        return OPEN
    name = user or next(iter(users))
    if name not in users:
        plan["problems"].append(
            "%s: gpu_monitoring_scrape_user is %s, but dcgm_exporter_basic_auth_users has only %s. Add the user, or set one "
            "of these." % (host.name, name, ", ".join(users))
        )
        return OPEN
    for entry in plan["access"]:
        if (entry["user"], entry["password"]) == (name, str(users[name])):
            return entry["name"]
    # Derive the name from the user and the entry's first host. A number would change when an earlier host is removed,
    # and a digest of the password would reveal something about it.
    digest = hashlib.sha256(("%s\0%s" % (name, host.name)).encode()).hexdigest()
    entry = {"name": "password-%s" % digest[:12], "user": str(name), "password": str(users[name])}
    plan["access"].append(entry)
    return entry["name"]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"scrape_plan": scrape_plan}
