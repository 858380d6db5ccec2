# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the role gpu_monitoring on this machine without root.

The role writes its files to a folder that the inventory of the tests names.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import yaml

from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook
from tests.monitoring.rule_files import ROOT, TOOLS

PLAY = [
    {
        "hosts": "monitor",
        "gather_facts": False,
        "tasks": [
            {
                "ansible.builtin.include_role": {
                    "name": "openfleet.gpu.gpu_monitoring",
                    "tasks_from": "{{ entry | default('main') }}",
                }
            }
        ],
    }
]

#: Variables for tests that only write files. No Prometheus runs in these tests.
NOBODY_ASKED = {
    "gpu_monitoring_health_timeout": 0,
    "gpu_monitoring_promtool": "",
    "gpu_monitoring_reload": "none",
    "gpu_monitoring_exporters": ["host"],
}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Site:
    """A folder for all files, and an inventory of a monitoring host and two GPU hosts.

    No host of the inventory listens on a port.
    """

    def __init__(self, place: Path, url: str):
        self.place, self.url = place, url
        self.directory = place / "prometheus" / "openfleet-gpu"
        hosts = {f"gpu-{number}": {"dcgm_exporter_listen_address": "127.0.0.1%d" % number} for number in (1, 2)}
        for variables in hosts.values():
            variables["dcgm_exporter_port"] = free_port()
        python = interpreter(place / "python3")
        inventory = {
            "gpu_monitoring": {
                "hosts": {"monitor": {"ansible_connection": "local", "ansible_python_interpreter": str(python)}}
            },
            "gpu_hosts": {"hosts": hosts},
        }
        (place / "hosts.yml").write_text(yaml.safe_dump(inventory))
        (place / "play.yml").write_text(yaml.safe_dump(PLAY))

    def run(self, *options, fails=False, meanwhile=None, **variables):
        """Return the output and the number of changed tasks.

        `meanwhile` is (regular expression, function). If a line of output matches, the function is called.
        """
        variables = {
            "gpu_monitoring_source": "existing",
            "gpu_monitoring_directory": str(self.directory),
            "gpu_monitoring_grafana_dashboards_directory": str(self.place / "grafana" / "dashboards"),
            "gpu_monitoring_grafana_group": os.getgid(),
            "gpu_monitoring_promtool": str(TOOLS / "promtool"),
            "gpu_monitoring_reload": "url",
            "gpu_monitoring_url": self.url,
            **variables,
        }
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            # Ansible must not buffer its output, because the output is read while the role runs.
            **({"PYTHONUNBUFFERED": "1"} if meanwhile else {}),
        }
        with subprocess.Popen(
            [
                *warm_playbook.COMMAND,
                "-i",
                self.place / "hosts.yml",
                self.place / "play.yml",
                "-e",
                json.dumps(variables),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=ROOT,
        ) as made:
            lines = []
            for line in made.stdout:
                lines.append(line)
                if meanwhile and re.search(meanwhile[0], line):
                    meanwhile[1]()
                    meanwhile = None
        output = "".join(lines)
        assert not meanwhile, output
        assert (made.returncode != 0) == fails, output
        (changed,) = re.findall(r"monitor +: ok=\d+ +changed=(\d+)", output) or ["0"]
        return output, int(changed)

    def files(self):
        found = [path for top in (self.directory, self.place / "grafana") for path in top.rglob("*") if path.is_file()]
        return {path: path.read_text(encoding="utf-8") for path in found}
