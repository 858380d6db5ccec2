#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/audit.py, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: audit
short_description: Audit GPU reservations and use
version_added: "0.1.0"
description:
  - Reads the C(gpu:*) series of a Prometheus-compatible server over a time window, and the state of hosts. Gives every GPU, MIG
    instance and tenant one verdict with a reason. The playbook C(openfleet.gpu.audit) uses this module.
  - The metrics or the hosts alone are sufficient. RV(missing) lists missing data. A GPU whose metrics are missing is never
    reported idle.
  - The server calculates quantiles and maxima. Network traffic therefore depends on the number of GPUs, not of samples.
  - The module changes nothing on hosts. In check mode it writes and sends nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description:
      - Directory for C(audit.json), C(audit.csv), C(audit-hours.csv), C(audit-owners.csv), C(audit.prom) and C(audit.html). Each
        file is replaced atomically. Without this option, nothing is written.
    type: path
  keep:
    description:
      - Number of reports to keep. With V(0), a new report replaces the report in O(directory).
      - With any other number, each report gets a subdirectory. The name is the time of the report (V(2026-11-22T060000Z)). The
        link C(latest) refers to the newest report. The page C(index.html) shows all reports and their trend.
    type: int
    default: 0
  prometheus:
    description:
      - How to reach the server. The keys are C(url), C(user) and C(password) or C(token), C(ca_file), C(verify),
        C(timeout_seconds) (default 30) and C(headers). Mimir, for example, needs the header C(X-Scope-OrgID).
      - Without C(url), no server is used.
    type: dict
    default: {}
  window:
    description: Length of the time range, for example V(14d) or V(36h).
    type: str
    default: 14d
  selector:
    description: Label matchers, for example V(cluster="a"). Needed if the server also has metrics of other fleets.
    type: str
    default: ""
  hosts:
    description:
      - Results of M(openfleet.gpu.gpu_info) by host. A host without a result counts as unanswered.
      - A host with an invalid result also counts as unanswered, and RV(missing) lists it.
    type: dict
    default: {}
  answers:
    description:
      - Results by host of a task that ran C(gpu-layout holders --json), for example with M(ansible.builtin.raw). They are
        validated like O(hosts), and used in addition to O(hosts).
    type: dict
    default: {}
  hosts_asked:
    description: All queried hosts. The audit reports those without an answer.
    type: list
    elements: str
    default: []
  kubernetes:
    description:
      - How the controller queries the API server for hosts that are Kubernetes nodes. The keys are C(backend), C(node),
        C(kubeconfig), C(context) and C(delegate_to). Each value maps host names to the host's variable C(gpu_kubernetes_*) of
        that name.
      - The API provides the owners and labels of pods that hold GPUs. Each node with such pods is queried once. If the API does
        not answer, or if C(delegate_to) is another host, the report uses the pod names from the host.
    type: dict
    default: {}
  slurm:
    description:
      - Jobs of Slurm. C(jobs) has results of M(openfleet.gpu.slurm_jobs) by host, with one host for each cluster. C(nodes) maps
        hosts to their node names. By default, a node has the name of its host, with or without the domain.
      - The report then has GPU hours and use by job, user and account. RV(missing) says if the accounting does not answer.
    type: dict
    default: {}
  owners:
    description:
      - Teams of workloads. Each entry has C(team), optionally C(contact), and globs in C(accounts) (Unix accounts, users and
        accounts of Slurm), C(namespaces) (of Kubernetes) or C(units) (units with or without V(.service), containers and tenants).
      - The first matching entry applies.
    type: list
    elements: dict
    default: []
  prices:
    description:
      - Prices of GPUs. C(model) is a glob that is matched against NVML's name without "NVIDIA ". C(price) is the price of one
        GPU for one hour. The first match applies.
      - The price of a GPU is divided among its instances in proportion to their memory.
    type: list
    elements: dict
    default: []
  currency:
    description: Currency of O(prices), for display.
    type: str
    default: ""
  thresholds:
    description:
      - Thresholds of verdicts. C(least_history_hours) (24), C(least_coverage_ratio) (0.5), C(idle_hours) (48),
        C(rhythm_factor) (2), C(new_holder_hours) (184), C(small_memory_ratio) (0.5), C(memory_margin_ratio) (0.15),
        C(small_compute_ratio) (0.5), C(full_memory_ratio) (0.95), C(saturated_ratio) (0.9), C(useful_tensor_ratio) (0.1),
        C(useful_bandwidth_ratio) (0.3), C(throttled_ratio) (0.05).
      - C(idle_hours) is at least 1, because signs of work are known by the hour.
    type: dict
    default: {}
  exempt:
    description: Hosts, GPU UUIDs and names of tenants to leave out.
    type: list
    elements: str
    default: []
  holidays:
    description:
      - Days that do not count as quiet. C(days) is a list of days like V(2026-12-25) or ranges like V(2026-12-24/2027-01-01).
        C(time_zone) (V(UTC)) is their time zone, for example V(Europe/Berlin).
    type: dict
    default: {}
  previous:
    description:
      - The C(audit.json) to compare with. The default is the latest in O(directory), if any.
    type: path
  fail_on:
    description:
      - Fail if there is any of these verdicts. The reports are written first.
      - V(unanswered) means that a queried host did not answer, because it is unreachable, has no driver or pynvml, or failed.
    type: list
    elements: str
    choices:
      - unhealthy
      - broken_metrics
      - held_without_process
      - idle
      - standby
      - stalled
      - saturated
      - oversized_memory
      - oversized_compute
      - no_data
      - free
      - right
      - unanswered
    default: []
  notify:
    description:
      - Receivers of the summary. C(url) is a web hook. It gets a POST request with JSON (C(text) and C(summary)). C(to) is a
        mail address, with the keys C(sender) and C(server) (default V(localhost)).
      - C(format=slack) sends only C(text), with Slack's escapes. C(tls) is V(starttls) (port 587) or V(tls) (port 465).
        C(user) and C(password) log in, which needs C(tls). C(ca_file) verifies the server instead of the system's certificates.
      - A redirect of a web hook is an error. The message is not sent to the new address.
      - In the text for web hooks, similar-looking characters replace characters that would create mentions or links.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.audit) in C(module_defaults) to set defaults for several modules.
    membership: [openfleet.gpu.audit]
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Audit two weeks and fail if a GPU is held without a process
  openfleet.gpu.audit:
    directory: /srv/gpu-audit
    prometheus: {url: https://prometheus.example.org, user: audit, password: "{{ vault_audit_password }}"}
    prices: [{model: "H100*", price: 2.5}, {model: "L40S*", price: 0.9}]
    currency: EUR
    fail_on: [held_without_process]
"""

RETURN = r"""
line:
  description: The audit in one line.
  returned: success
  type: str
  sample: >-
    16 findings: 8 held without process, 8 idle; 2 new, 1 gone; without findings: 48 right;
    reserved and unused: 16 GPUs (29,216 EUR/month)
summary:
  description: >-
    Number of subjects (C(findings)), also by verdict (C(words)) and by state (C(new), C(still), C(gone), C(unseen)).
    C(new_findings) counts new verdicts other than C(no_data), C(free) and C(right). C(waste_per_month) is an amount in
    C(currency). C(ledger) has GPUs, GPU hours and cost by class.
  returned: success
  type: dict
  sample:
    findings: 64
    words: {unhealthy: 0, broken_metrics: 0, held_without_process: 8, idle: 8, standby: 0, stalled: 0, saturated: 0,
            oversized_memory: 0, oversized_compute: 0, no_data: 0, free: 0, right: 48}
    new: 2
    new_findings: 2
    still: 62
    gone: 1
    unseen: 0
    waste_per_month: 29216.0
    currency: EUR
    ledger: {total: {gpus: 64.0, gpu_hours: 10752.0, cost_per_month: 116864.0}}
missing:
  description: Missing data and its consequences, and anomalies in the data.
  returned: success
  type: list
  elements: str
  sample: ["1 of 8 hosts did not answer (h100-08): the holders of their GPUs are known only from metrics."]
files:
  description: The files that were written.
  returned: success
  type: list
  elements: str
  sample: [reports/audit.json, reports/audit.csv, reports/audit.html]
told:
  description: Notified receivers. Web hooks are shown by their host.
  returned: success
  type: list
  elements: str
  sample: [platform@example.com, "https://hooks.example.com/…"]
"""
