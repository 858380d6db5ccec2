#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/reclaim_tell.py, which does all of it on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: reclaim_tell
short_description: Tell owners of idle GPUs that they will be stopped, or were
version_added: "0.1.0"
description:
  - Sends mails and calls web hooks about what M(openfleet.gpu.reclaim) announced and stopped on a host. The playbook
    C(openfleet.gpu.rightsize) is made of it.
  - A receiver gets one message for all announcements of the host, and one for all stops. A user gets those that are about what is
    theirs.
  - Without O(result) it only checks the settings. In check mode it sends nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  host:
    description: The host's name in the inventory.
    type: str
    default: ""
  result:
    description: What M(openfleet.gpu.reclaim) returned.
    type: dict
  ways:
    description:
      - Each is V(webhook) or V(mail) for those of O(notify), V(wall) or V(home), which the module does on the host, or a mapping
        as in O(notify). In C(to) of a mail C({user}) stands for the owner's account.
      - Without it all of O(notify).
    type: list
    elements: raw
  notify:
    description: As O(openfleet.gpu.audit#module:notify).
    type: list
    elements: dict
    default: []
  notice:
    description: The time between the announcement and the stop, as V(24h); V(0) for no announcement.
    type: str
    default: 24h
  owners:
    description:
      - Who owns what on the host, for C({user}), each C(match) (a glob on services, with or without C(.service), and containers)
        and C(user). The first that matches holds; what none matches is the account's that the host names.
    type: list
    elements: dict
    default: []
  keep_url:
    description: As O(openfleet.gpu.reclaim#module:keep_url).
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
  description: Who was told, the address of a web hook without its path.
  returned: success
  type: list
  elements: str
untold:
  description: Who could not be told, and why.
  returned: success
  type: list
  elements: str
confirmed:
  description: The announcements that were delivered, for O(openfleet.gpu.reclaim#module:confirmed).
  returned: success
  type: list
  elements: dict
notice_seconds:
  description: O(notice) in seconds.
  returned: success
  type: float
host_ways:
  description: Those of O(ways) that the module C(reclaim) does on the host.
  returned: success
  type: list
  elements: str
tells:
  description: Whether there is anybody that the controller tells.
  returned: success
  type: bool
"""
