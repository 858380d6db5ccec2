#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_request
short_description: Send an HTTP request to a verified service on the host
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Sends an HTTP request to a service, as M(ansible.builtin.uri) does, and parses the JSON of the response.
  - If O(password) is set, nothing is sent before the server is verified. With C(https), the server's certificate and name are
    verified. With C(http), the kernel must report that the other end of the connection is a process of O(unit). So if a user of
    the host listens on the port while the service is down, the password is not sent.
  - It follows no redirects and uses no proxy.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root, for requests with a password over C(http)
options:
  url:
    description: URL of the request.
    type: str
    required: true
  method:
    description: HTTP method. V(POST) sends an empty body, and is skipped in check mode.
    type: str
    choices: [GET, POST]
    default: GET
  username:
    description: User for HTTP basic authentication.
    type: str
    default: ""
  password:
    description: Password of O(username). Without one, a server over C(http) is not verified.
    type: str
    default: ""
  ca_path:
    description: File with certificate authorities for verifying the server. Defaults to the authorities that the host trusts.
    type: path
  unit:
    description: systemd unit of the server, with or without C(.service). Used for requests with a password over C(http).
    type: str
    required: true
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: partial
    details: Sends requests with O(method=GET) only.
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: ansible.builtin.uri
"""

EXAMPLES = r"""
- name: Read the state of Prometheus
  openfleet.gpu.unit_request:
    url: http://127.0.0.1:9090/api/v1/status/runtimeinfo
    username: ansible
    password: "{{ vault_prometheus_password }}"
    unit: prometheus.service
  become: true
"""

RETURN = r"""
status:
  description: HTTP status of the response.
  returned: when there was a response
  type: int
  sample: 200
json:
  description: Parsed body of the response.
  returned: when the response is JSON
  type: raw
  sample: {status: success, data: {reloadConfigSuccess: true}}
"""

import contextlib
import json
import re
import ssl
import urllib.error
import urllib.parse

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import FleetError
from ..module_utils.foreign_text import one_line
from ..module_utils.holders.peer_owner import UnitOwner
from ..module_utils.http_opener import FAILURES, Request, basic, opener
from ..module_utils.processes import peer
from ..module_utils.runner import run

TIMEOUT_SECONDS = 30
# Limits: bytes of a response, and characters of a server's text that a message shows.
MOST_BYTES = 1 << 26
MOST_SHOWN = 300


class RequestError(FleetError):
    """A request has no usable response. `where` is the URL."""


def argspec():
    return {
        "url": {"type": "str", "required": True},
        "method": {"type": "str", "choices": ["GET", "POST"], "default": "GET"},
        "username": {"type": "str", "default": ""},
        "password": {"type": "str", "default": "", "no_log": True},
        "ca_path": {"type": "path"},
        "unit": {"type": "str", "required": True},
    }


def send(params):
    """Send the request and return the module's result. Raises RequestError."""
    url, password = params["url"], params["password"]
    where = re.sub("//[^/]*@", "//", url)
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise RequestError(where, "it is not an HTTP URL", "Write http:// or https:// in front.")
    unit = params["unit"] if params["unit"].endswith(".service") else params["unit"] + ".service"

    def check(connection):
        if password and scheme == "http":
            peer.check(connection, UnitOwner(unit))

    request = Request(url, data=b"" if params["method"] == "POST" else None, method=params["method"])
    if password:
        request.add_header("Authorization", basic(params["username"], password))
    try:
        context = ssl.create_default_context(cafile=params["ca_path"]) if scheme == "https" else None
        with opener(context, check).open(request, timeout=TIMEOUT_SECONDS) as response:
            status, body = response.status, response.read(MOST_BYTES + 1)
    except peer.PeerError as error:
        cure = (
            "End the process that has the port, or set unit to the server's unit. For a server on another host, use https, so "
            "that its certificate is verified."
        )
        raise RequestError(where, "%s. No password was sent" % error, cure) from None
    except urllib.error.HTTPError as error:
        with error:
            raise RequestError(
                where, "it answered HTTP %d %s" % (error.code, one_line(error.reason, MOST_SHOWN))
            ) from None
    except FAILURES as error:
        reason = getattr(error, "reason", None) or error
        raise RequestError(where, "it could not be reached: %s" % one_line(reason, MOST_SHOWN)) from None
    if len(body) > MOST_BYTES:
        raise RequestError(
            where, "its answer is larger than %d MiB" % (MOST_BYTES >> 20), "Check which program the unit runs."
        )
    result = {"changed": False, "status": status}
    with contextlib.suppress(ValueError, RecursionError):
        result["json"] = json.loads(body)
    return result


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    if module.check_mode and module.params["method"] == "POST":
        module.exit_json(skipped=True, changed=False)
    run(module, lambda: send(module.params))


if __name__ == "__main__":
    main()
