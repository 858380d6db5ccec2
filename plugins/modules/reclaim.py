#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reclaim
short_description: Announce and stop what holds a GPU and does nothing with it
version_added: "0.1.0"
description:
  - Stops systemd services and containers of Docker or Podman that hold GPUs without using them, as M(openfleet.gpu.rightsize)
    lists them.
  - Works in steps, a step in a run. The first run that lists an idle holder announces that it will be stopped. A run stops it
    when it was announced O(notice_seconds) ago, is listed again with the same GPUs, and is not kept (C(gpu-layout keep)).
  - Looks again first, and watches the GPUs for O(look_seconds) before a stop. What holds other GPUs than named, or no longer
    these, or a GPU on which something runs, is spared; so is a service with which others would stop, and what began within
    O(quiet_seconds).
  - Give it all that the host may stop. An announcement of anything else is forgotten.
  - A stopped service is not disabled. Start it with C(systemctl start). If it is enabled, it starts at the next boot.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
  - nvidia-ml-py on the host
options:
  items:
    description: What may be stopped.
    type: list
    elements: dict
    required: true
    suboptions:
      kind:
        description: What it is.
        type: str
        choices: [unit, container]
        required: true
      name:
        description: Name of the unit; name or id of the container.
        type: str
        required: true
      runtime:
        description: Of a container, V(docker) or V(podman).
        type: str
        default: ""
      gpus:
        description: The GPUs that it holds, by UUID; an instance as the UUID, a blank and the GPU instance's id.
        type: list
        elements: str
        required: true
      quiet_seconds:
        description:
          - For how long it is known to be idle. An announcement of before that was for an earlier time of idleness, and counts
            no more.
        type: float
      idle_after_seconds:
        description: From when on a quiet time of it is idle. What began later is spared, as what began within O(quiet_seconds).
        type: float
  jupyter:
    description:
      - Which of O(items) are Jupyter servers. Such a one goes on, and only those of its kernels are shut down, by its REST API,
        that were idle for O(quiet_seconds) and that no browser is connected to. What they had in memory is lost.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the unit or container.
        type: str
        required: true
      url:
        description: Address of the server, as the host sees it.
        type: str
        required: true
      token:
        description: The server's token.
        type: str
        default: ""
  quiet_seconds:
    description: So long something has to have run, and a kernel of Jupyter's to have been idle.
    type: float
    default: 172800
  look_seconds:
    description:
      - For so long the GPUs are watched right before a stop, with a sample a second. One look serves all O(items). Any sample of
        activity spares, and so does a client that connects within that time (TCP), or a tenth of a core that the processes of an
        item take. Of instances of MIG the latter two alone tell, since NVML has no utilisation of them.
    type: float
    default: 60
  notice_seconds:
    description: An idle holder is stopped so long after it was announced. With V(0) it is stopped in the run that lists it first.
    type: float
    default: 86400
  tell:
    description:
      - How owners are notified on the host about the announcement and the stop.
      - V(wall) writes to all terminals. V(home) writes the file C(gpu-notice-NAME.txt) in the home of the user that the main
        process of a service runs as, with that user's id. Root's services and containers have no such user.
      - One that fails is listed in C(untold), and stops nothing.
    type: list
    elements: str
    choices: [wall, home]
    default: []
  host:
    description: How the texts name the host. Its own name without it.
    type: str
    default: ""
  keep_url:
    description: A link for the texts, with C({host}) and C({name}) in it. The collection serves none.
    type: str
    default: ""
  confirm:
    description:
      - Announcements of this run count only once a run names them in O(confirmed). For a caller who tells owners itself, so that
        nothing is stopped without a notice that reached its owner.
    type: bool
    default: false
  confirmed:
    description: Announcements that were delivered. With this option, nothing else is done.
    type: list
    elements: dict
    default: []
    suboptions:
      kind:
        description: As in O(items).
        type: str
        choices: [unit, container]
        required: true
      name:
        description: As in O(items).
        type: str
        required: true
      runtime:
        description: As in O(items).
        type: str
        default: ""
      gpus:
        description: As in O(items).
        type: list
        elements: str
        required: true
  state_directory:
    description: Where the host keeps its records, C(gpu_layout_state_directory). Announcements and keeps are in C(reclaim) there.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.state) in C(module_defaults) to set defaults for several modules.
    membership: openfleet.gpu.state
  check_mode:
    support: full
    details: Looks at everything and stops nothing.
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.rightsize
  - module: openfleet.gpu.drain
"""

EXAMPLES = r"""
- name: Stop a notebook server that does nothing
  openfleet.gpu.reclaim:
    items:
      - {kind: unit, name: jupyter.service, gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d]}
  become: true
"""

RETURN = r"""
noticed:
  description: >-
    What was announced, in check mode what would be, each with C(kind), C(name), C(runtime), C(gpus), C(places) (the GPUs in
    words), C(holders) in words, C(user) (the account that owns it, if that is known), C(idle_since) and C(stop_after) as Unix
    times, C(jupyter), C(keep) (the name for C(gpu-layout keep), empty where the host has no such service), C(told) and C(untold).
  returned: success
  type: list
  elements: dict
stopped:
  description: >-
    What was stopped, in check mode what would be, each with C(kind), C(name), C(runtime), C(gpus), C(places), C(holders),
    C(user), C(told) and C(untold); of a Jupyter server C(kernels), those that were shut down.
  returned: success
  type: list
  elements: dict
spared:
  description: What was not, each with C(kind), C(name) and C(why).
  returned: success
  type: list
  elements: dict
"""

import contextlib
import os
import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.holders.find import find_holders
from ..module_utils.keep import keeps, notices
from ..module_utils.keep.server import SOCKET
from ..module_utils.nvml.bounded_session import BoundedSession
from ..module_utils.nvml.calls import respawn_with_pynvml
from ..module_utils.reclaim.stop import Policy, Tools, reclaim
from ..module_utils.runner import run
from ..module_utils.transaction import looking

_FINDING = {
    "kind": {"type": "str", "choices": ["unit", "container"], "required": True},
    "name": {"type": "str", "required": True},
    "runtime": {"type": "str", "default": ""},
    "gpus": {"type": "list", "elements": "str", "required": True},
}


def argspec():
    return {
        "items": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": dict(_FINDING, quiet_seconds={"type": "float"}, idle_after_seconds={"type": "float"}),
        },
        "jupyter": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "name": {"type": "str", "required": True},
                "url": {"type": "str", "required": True},
                "token": {"type": "str", "default": "", "no_log": True},
            },
        },
        "quiet_seconds": {"type": "float", "default": 172800},
        "look_seconds": {"type": "float", "default": 60},
        "notice_seconds": {"type": "float", "default": 86400},
        "tell": {"type": "list", "elements": "str", "choices": ["wall", "home"], "default": []},
        "host": {"type": "str", "default": ""},
        "keep_url": {"type": "str", "default": ""},
        "confirm": {"type": "bool", "default": False},
        "confirmed": {"type": "list", "elements": "dict", "default": [], "options": _FINDING},
        "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
    }


@contextlib.contextmanager
def session(directory):
    """NVML for a moment, while no run changes the host: a reset waits until the GPUs are closed."""
    with looking(directory) as busy:
        if busy is not None:
            raise busy
        with BoundedSession() as opened:
            yield opened


def look(directory):
    with session(directory) as opened:
        host = opened.observe(telemetry=True)
    return host, find_holders(host, sockets=True)


def sample(directory):
    with session(directory) as opened:
        return opened.utilizations()


def bring_about(params, check_mode):
    """The module's return values."""
    directory, period = params["state_directory"], params["notice_seconds"]
    nothing = {"noticed": [], "stopped": [], "spared": []}
    recorded = os.path.exists(os.path.join(directory, notices.FOLDER))  # noqa: PTH110, PTH118
    if not params["items"] and not params["confirmed"] and not recorded:
        return dict(nothing, changed=False)
    if params["items"]:
        try:
            BoundedSession()
        except DriverAbsentError:
            # Ahead of the lock, which the other interpreter takes itself.
            respawn_with_pynvml()
            raise
    with contextlib.ExitStack() as stack:
        record = stack.enter_context(notices.opened(directory, period, check_mode)) if period > 0 else None
        if params["confirmed"]:
            if record is not None and not check_mode:
                record.add(params["confirmed"], time.time())
            return dict(nothing, changed=record is not None)
        policy = Policy(
            grace_seconds=params["quiet_seconds"],
            look_seconds=params["look_seconds"],
            dry=check_mode,
            jupyter=params["jupyter"],
            record=record,
            records=not params["confirm"],
            ways=params["tell"],
            host=params["host"] or os.uname().nodename,
            can_keep=os.path.exists(SOCKET),  # noqa: PTH110
            keep_url=params["keep_url"],
        )
        tools = Tools(lambda: look(directory), lambda: sample(directory), lambda: keeps.read(directory, time.time()))
        done = reclaim(params["items"], tools, policy)
    return dict(done, changed=bool(done["stopped"] or done["noticed"]))


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
