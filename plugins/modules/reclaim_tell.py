#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/reclaim_tell.py, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: reclaim_tell
short_description: Notify owners of idle GPU holders about announced and completed stops
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Sends mails and calls web hooks about the holders that M(openfleet.gpu.reclaim) announced and stopped on a host. The playbook
    C(openfleet.gpu.rightsize) uses this module.
  - A receiver gets one message about all announcements on the host, and one about all stops. A user gets only messages about
    their own holders.
  - Without O(result), it only validates the settings. In check mode, it sends nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  host:
    description: Name of the host in the inventory.
    type: str
    default: ""
  result:
    description: Result of M(openfleet.gpu.reclaim).
    type: dict
  ways:
    description:
      - How to notify. V(webhook) and V(mail) select the receivers of that type in O(notify). M(openfleet.gpu.reclaim) handles
        V(wall) and V(home) on the host. A mapping is a further receiver, in the format of O(notify).
      - In C(to) of a mail, C({user}) is replaced with the owner's account.
      - Defaults to all receivers of O(notify).
    type: list
    elements: raw
  notify:
    description: Same as O(openfleet.gpu.audit#module:notify).
    type: list
    elements: dict
    default: []
  notice:
    description: Time between announcement and stop, for example V(24h). V(0) stops without an announcement.
    type: str
    default: 24h
  owners:
    description:
      - Owners of holders on the host, for C({user}). Each entry has C(match) and C(user). C(match) is a glob that is matched
        against the names of services (with or without C(.service)) and containers. The first match applies. Without a match,
        the owner is the account that the host reports.
    type: list
    elements: dict
    default: []
  keep_url:
    description: Same as O(openfleet.gpu.reclaim#module:keep_url).
    type: str
    default: ""
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: openfleet.gpu.reclaim
  - module: openfleet.gpu.rightsize
"""

EXAMPLES = r"""
- name: Send mail to owners
  openfleet.gpu.reclaim_tell:
    host: "{{ inventory_hostname }}"
    result: "{{ reclaimed }}"
    ways: [{to: "{user}@example.org", server: "mail.example.org:25"}]
"""

RETURN = r"""
told:
  description: Notified receivers. Web hooks are shown without their path.
  returned: success
  type: list
  elements: str
  sample: [alice@example.com, "https://hooks.example.com/…"]
untold:
  description: Receivers that could not be notified, with the reason.
  returned: success
  type: list
  elements: str
  sample: ["https://hooks.example.com/…: the web hook answered HTTP 500. The report is written."]
confirmed:
  description: Delivered announcements, for O(openfleet.gpu.reclaim#module:confirmed).
  returned: success
  type: list
  elements: dict
  sample: [{kind: unit, name: jupyter.service, runtime: "", gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d]}]
notice_seconds:
  description: O(notice) in seconds.
  returned: success
  type: float
  sample: 86400.0
host_ways:
  description: O(ways) that M(openfleet.gpu.reclaim) uses on the host.
  returned: success
  type: list
  elements: str
  sample: [wall]
tells:
  description: Whether the controller has receivers to notify.
  returned: success
  type: bool
  sample: true
"""
