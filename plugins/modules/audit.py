#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/audit.py, which does all of it on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: audit
short_description: Say who holds GPUs and what they make of them
version_added: "0.1.0"
description:
  - Reads the C(gpu:*) series of a Prometheus-compatible server over a window, and what hosts say of themselves, and gives every
    GPU, MIG instance and tenant one verdict with its reason. The playbook C(openfleet.gpu.audit) is made of it.
  - One source is enough. RV(missing) lists what the other would have given. A GPU is never reported idle when its metrics are
    missing.
  - Quantiles and maxima are computed by the server, so that what crosses the network grows with GPUs and not with samples.
  - It changes nothing on any host. In check mode it writes and tells nothing either.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description:
      - Where C(audit.json), C(audit.csv) and C(audit.html) are written, each whole or not at all. Nothing is written without it.
    type: path
  keep:
    description:
      - How many reports to keep. With V(0) the ones in O(directory) are replaced.
      - Otherwise each has a directory in it, named by its time (V(2026-11-22T060000Z)). There is a link C(latest) to the
        last one, and a page C(index.html) with all of them and their trend.
    type: int
    default: 0
  prometheus:
    description:
      - How to reach the server, C(url) and where needed C(user) and C(password), or C(token), C(ca_file), C(verify),
        C(timeout_seconds) (30), C(headers), as C(X-Scope-OrgID) for Mimir.
      - Without C(url) no server is asked.
    type: dict
    default: {}
  window:
    description: How far back to look, as V(14d) or V(36h).
    type: str
    default: 14d
  selector:
    description: Narrows the series, as V(cluster="a"), where a server has more than this fleet.
    type: str
    default: ""
  hosts:
    description:
      - By host, the results of M(openfleet.gpu.gpu_info). One without a result did not answer.
      - One whose result is not what that module returns is told in RV(missing), and counts as not having answered.
    type: dict
    default: {}
  answers:
    description:
      - By host, the results of a task that ran C(gpu-layout holders --json) there, as M(ansible.builtin.raw) does. They are read
        with the same care as those of O(hosts), and stand beside them.
    type: dict
    default: {}
  hosts_asked:
    description: The hosts that were asked, so that the ones that did not answer can be named.
    type: list
    elements: str
    default: []
  kubernetes:
    description:
      - How the API server of hosts that are Kubernetes nodes is asked, on the controller. It has C(backend), C(node),
        C(kubeconfig), C(context) and C(delegate_to), each a dictionary by host of the variable C(gpu_kubernetes_) of that name.
      - Pods that hold GPUs get their owner and labels from it, by one call for each node that has such pods. Without it, with an
        API server that does not answer, or where C(delegate_to) is another host, they have the names that their host gives them.
    type: dict
    default: {}
  prices:
    description:
      - What GPUs cost. Each has C(model), a glob on NVML's name without "NVIDIA ", and C(price), of one GPU for one hour. The
        first that matches holds.
      - An instance has its share of its GPU's price by its memory.
    type: list
    elements: dict
    default: []
  currency:
    description: The currency of O(prices), for people to read.
    type: str
    default: ""
  thresholds:
    description:
      - Where the verdicts begin. C(least_history_hours) (24), C(least_coverage_ratio) (0.5), C(idle_hours) (48),
        C(rhythm_factor) (2), C(new_holder_hours) (176), C(small_memory_ratio) (0.5), C(memory_margin_ratio) (0.15),
        C(small_compute_ratio) (0.5), C(full_memory_ratio) (0.95), C(saturated_ratio) (0.9), C(useful_tensor_ratio) (0.1),
        C(useful_bandwidth_ratio) (0.3), C(throttled_ratio) (0.05).
    type: dict
    default: {}
  exempt:
    description: Hosts, UUIDs of GPUs and names of tenants of which nothing is said.
    type: list
    elements: str
    default: []
  holidays:
    description:
      - Days that do not count as quiet, so that a service that rests on them is not idle for it. C(days), a list of days as
        V(2026-12-25) or first and last day as V(2026-12-24/2027-01-01), and their C(time_zone) (V(UTC)) as V(Europe/Berlin).
    type: dict
    default: {}
  previous:
    description:
      - The C(audit.json) to compare with. Without it, the latest one in O(directory), if there is one.
    type: path
  fail_on:
    description:
      - Fail, after everything is written, where there is a finding with one of these verdicts.
      - V(unanswered) is no verdict but a host that was asked and said nothing of its GPUs, because it could not be reached, has
        no driver or pynvml, or the look at it failed.
    type: list
    elements: str
    choices:
      - unhealthy
      - broken_metrics
      - held_without_process
      - idle
      - standby
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
      - Whom to tell. Each has C(url), a web hook that takes a POST of JSON (C(text) and C(summary)), or C(to), a mail address,
        with C(sender) and C(server) (V(localhost:25)).
      - A web hook that answers with a redirection is an error, and the message is not sent to the new address.
      - In the text for a web hook look-alikes stand for the characters that chats take for mentions and links.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.audit) in C(module_defaults) to set defaults for several modules.
    membership: openfleet.gpu.audit
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
- name: Audit two weeks, and fail where a GPU is held without a process
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
  sample: "64 findings: 8 held without process, 8 idle, 48 right; 2 new, 1 gone; wasted: 29,220 EUR/month"
summary:
  description: >-
    How many C(findings) there are, by C(words), how many C(new), C(still), C(gone) and C(unseen), and C(waste_per_month)
    with its C(currency).
  returned: success
  type: dict
missing:
  description: What could not be read, and what therefore is not known; and what was odd about what was read.
  returned: success
  type: list
  elements: str
files:
  description: The files that were written.
  returned: success
  type: list
  elements: str
told:
  description: Who was told, a web hook by its host.
  returned: success
  type: list
  elements: str
"""
