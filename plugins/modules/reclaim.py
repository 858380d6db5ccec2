#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reclaim
short_description: Stop idle GPU holders after a notice
version_added: "0.1.0"
description:
  - Stops systemd services, Docker or Podman containers and Slurm jobs that hold GPUs without using them.
    M(openfleet.gpu.rightsize) lists such holders.
  - The first run that lists an idle holder only announces the stop. A later run stops the holder if the announcement is at
    least O(notice_seconds) old, if the holder is listed again with the same GPUs, and if it is not kept (C(gpu-layout keep)).
  - Before a stop, the module reads the holders again and watches the GPUs for O(look_seconds). A holder is spared if its GPUs
    differ from the listed GPUs, if one of its GPUs is in use, or if it started within the last O(quiet_seconds). A service is
    also spared if stopping it would stop other units.
  - In each run, O(items) must contain all holders that may be stopped. Announcements of other holders are deleted.
  - A Slurm job is cancelled with C(scancel), and its C(AdminComment) has the reason. Jobs on several nodes and parts of
    heterogeneous jobs are spared.
  - A stopped service is not disabled. Start it with C(systemctl start). If it is enabled, it starts at the next boot.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
  - nvidia-ml-py on the host
options:
  items:
    description: Holders that may be stopped.
    type: list
    elements: dict
    required: true
    suboptions:
      kind:
        description: Kind of the holder.
        type: str
        choices: [unit, container, job]
        required: true
      name:
        description: Name of the unit, name or ID of the container, or ID of the Slurm job.
        type: str
        required: true
      runtime:
        description: Runtime of the container, V(docker) or V(podman).
        type: str
        default: ""
      gpus:
        description: UUIDs of the held GPUs. A GPU instance is given as the UUID, a space and the instance ID.
        type: list
        elements: str
        required: true
      quiet_seconds:
        description:
          - For how many seconds the holder is known to be idle. Older announcements belong to a previous idle period and are
            ignored.
        type: float
      idle_after_seconds:
        description: >-
          After how many seconds without use the holder counts as idle. A holder that started within this time is spared, as
          with O(quiet_seconds).
        type: float
      stop_quiet_seconds:
        description: >-
          For how many seconds the holder must be idle before it is stopped. It is announced earlier, because it may only be
          paused.
        type: float
      rest_watts:
        description: >-
          Power in watts of GPUs at rest, by UUID. A GPU of an earlier generation than Hopper with MIG that draws more may run
          kernels, so its holders are spared.
        type: dict
        default: {}
      stop:
        description: >-
          Whether the holder may be stopped. With V(false), it is only announced. If this changes to V(true), the holder is
          announced again before it is stopped.
        type: bool
        default: true
  jupyter:
    description:
      - O(items) that are Jupyter servers. These servers keep running. Their kernels are shut down through the server's REST API
        if they were idle for O(quiet_seconds) and no browser is connected. The data in a kernel's memory is lost.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the unit or container.
        type: str
        required: true
      url:
        description: URL of the server on the host.
        type: str
        required: true
      token:
        description: Token of the server.
        type: str
        default: ""
  quiet_seconds:
    description: Minimum age of a holder, and minimum idle time of a Jupyter kernel, in seconds.
    type: float
    default: 172800
  look_seconds:
    description:
      - Time in seconds to watch the GPUs and MIG instances of all O(items) right before a stop.
      - A holder is spared if they work, if a TCP client connects, or if the holder's processes use a tenth of a core. Kernels
        are counted on Hopper and later. Elsewhere, utilization is sampled once a second.
      - A holder is also spared if it may do work that its GPU does not measure. Its announcement stays valid.
    type: float
    default: 300
  notice_seconds:
    description: Time in seconds between announcement and stop. With V(0), a holder is stopped in the first run that lists it.
    type: float
    default: 86400
  tell:
    description:
      - How the host notifies owners about the announcement and the stop.
      - V(wall) writes to all terminals. V(home) writes the file C(gpu-notice-NAME.txt), with the ID of the user that runs the
        service's main process, to this user's home directory. V(home) does not apply to containers or to services of root.
      - Failed notifications are listed in C(untold). They do not prevent the stop.
    type: list
    elements: str
    choices: [wall, home]
    default: []
  host:
    description: Name of the host in messages. Defaults to the host's own name.
    type: str
    default: ""
  keep_url:
    description: >-
      Link to include in messages. C({host}) and C({name}) in the link are replaced. The collection does not serve this link.
    type: str
    default: ""
  confirm:
    description:
      - Whether announcements of this run count only after a later run confirms them with O(confirmed). Callers that notify
        owners themselves set this, so that nothing is stopped unless its owner was notified.
    type: bool
    default: false
  confirmed:
    description: Announcements that were delivered. If this option is set, the module only records these.
    type: list
    elements: dict
    default: []
    suboptions:
      kind:
        description: As in O(items).
        type: str
        choices: [unit, container, job]
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
      stop:
        description: As in O(items).
        type: bool
        default: true
  state_directory:
    description: >-
      Directory of the host's records, C(gpu_layout_state_directory). Its subdirectory C(reclaim) contains the announcements,
      and the holders to keep.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.state) in C(module_defaults) to set defaults for several modules.
    membership: [openfleet.gpu.state]
  check_mode:
    support: full
    details: Checks everything and stops nothing.
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.rightsize
  - module: openfleet.gpu.drain
"""

EXAMPLES = r"""
- name: Announce and stop an idle notebook server
  openfleet.gpu.reclaim:
    items:
      - {kind: unit, name: jupyter.service, gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d]}
  become: true
"""

RETURN = r"""
noticed:
  description: >-
    Announced holders. In check mode, the holders that would be announced. Each has C(kind), C(name), C(runtime), C(gpus),
    C(places) (text about the GPUs), C(holders) (descriptions), C(user) (the owner's account, if known), C(idle_since) and
    C(stop_after) as Unix times, C(jupyter), C(keep), C(told) (successful notifications) and C(untold) (failed notifications).
    C(keep) is the name for C(gpu-layout keep), or empty if the host does not run that service.
  returned: success
  type: list
  elements: dict
  sample:
    - {kind: unit, name: jupyter.service, runtime: "", gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d],
       places: [gpu 0 (GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d)], holders: ["pid 4711 (python3, user alice, jupyter.service)"],
       user: alice, stop: true, idle_since: 1795741200.0, stop_after: 1796086800.0, jupyter: false, keep: jupyter.service,
       told: [wall], untold: []}
stopped:
  description: >-
    Stopped holders. In check mode, the holders that would be stopped. Each has C(kind), C(name), C(runtime), C(gpus),
    C(places), C(holders), C(user), C(told) and C(untold). Jupyter servers also have C(kernels), a list of the kernels that were
    shut down.
  returned: success
  type: list
  elements: dict
  sample:
    - {kind: unit, name: jupyter.service, runtime: "", gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d],
       places: [gpu 0 (GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d)], holders: ["pid 4711 (python3, user alice, jupyter.service)"],
       user: alice, told: [wall], untold: []}
spared:
  description: Holders that were not stopped, each with C(kind), C(name) and the reason C(why).
  returned: success
  type: list
  elements: dict
  sample: [{kind: unit, name: jupyter.service, why: kept until 2027-01-18 08:00 UTC by alice}]
"""

import contextlib
import os
import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.holders.find import find_holders
from ..module_utils.keep import keeps, notices
from ..module_utils.keep.server import SOCKET
from ..module_utils.plan.transaction import looking
from ..module_utils.reclaim.stop import Policy, Tools, reclaim
from ..module_utils.runner import run
from ..module_utils.vendors.nvidia.nvml import work
from ..module_utils.vendors.nvidia.nvml.bounded_session import BoundedSession
from ..module_utils.vendors.nvidia.nvml.calls import respawn_with_pynvml

_HOLDER = {
    "kind": {"type": "str", "choices": ["unit", "container", "job"], "required": True},
    "name": {"type": "str", "required": True},
    "runtime": {"type": "str", "default": ""},
    "gpus": {"type": "list", "elements": "str", "required": True},
    "stop": {"type": "bool", "default": True},
}


def argspec():
    return {
        "items": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": dict(
                _HOLDER,
                quiet_seconds={"type": "float"},
                idle_after_seconds={"type": "float"},
                stop_quiet_seconds={"type": "float"},
                rest_watts={"type": "dict", "default": {}},
            ),
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
        "look_seconds": {"type": "float", "default": 300},
        "notice_seconds": {"type": "float", "default": 86400},
        "tell": {"type": "list", "elements": "str", "choices": ["wall", "home"], "default": []},
        "host": {"type": "str", "default": ""},
        "keep_url": {"type": "str", "default": ""},
        "confirm": {"type": "bool", "default": False},
        "confirmed": {"type": "list", "elements": "dict", "default": [], "options": _HOLDER},
        "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
    }


@contextlib.contextmanager
def session(directory):
    """Open NVML only briefly, while no run changes the host: open GPUs delay resets."""
    with looking(directory) as busy:
        if busy is not None:
            raise busy
        with BoundedSession() as opened:
            yield opened


def look(directory):
    with session(directory) as opened:
        host = opened.observe(telemetry=True)
    return host, find_holders(host, sockets=True)


def measure(directory, places, seconds):
    with session(directory) as opened:
        return opened.perform(work.measure, places, seconds)


def bring_about(params, check_mode):
    """Notify owners of idle holders, stop holders, and return the module's result."""
    directory, period = params["state_directory"], params["notice_seconds"]
    nothing = {"noticed": [], "stopped": [], "spared": []}
    recorded = os.path.exists(os.path.join(directory, notices.FOLDER))  # noqa: PTH110, PTH118
    if not params["items"] and not params["confirmed"] and not recorded:
        return dict(nothing, changed=False)
    if params["items"]:
        try:
            BoundedSession()
        except DriverAbsentError:
            # Respawn before this process takes the lock, which the new interpreter takes itself.
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
        tools = Tools(
            lambda: look(directory),
            lambda places, seconds: measure(directory, places, seconds),
            lambda: keeps.read(directory, time.time()),
        )
        done = reclaim(params["items"], tools, policy)
    return dict(done, changed=bool(done["stopped"] or done["noticed"]))


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
