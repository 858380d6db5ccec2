# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count module executions in a run without changes with one task per object.

The table lists the tasks of a role of ansible.builtin modules that gives the same result as all roles of this
collection, with the executions per host. Where there is a choice, the count is low. A copy or template counts once,
although Ansible queries the host twice. One nvidia-smi query covers all GPUs. There are no retries, waits, drains or
rollbacks, and no plan before the first change.
"""

from __future__ import annotations

#: (role, executions per host, task)
TASKS = (
    ("play", 1, "setup: the facts that decide names of packages and paths"),
    # -- gpu_simulator does this in one command
    ("simulator", 1, "apt: compiler and make"),
    ("simulator", 4, "file: directories of the library, the tool, the models and the state"),
    ("simulator", 3, "unarchive: the sources, the tool, the models; one by one they would be some seventy files"),
    ("simulator", 1, "make: build what has changed"),
    ("simulator", 1, "copy: the library into its place"),
    ("simulator", 1, "copy: the loader's configuration"),
    ("simulator", 1, "template: which GPUs there are"),
    ("simulator", 1, "command: lay the GPUs out, unless they are"),
    # -- openfleet.gpu.driver does this in one execution
    ("driver", 1, "package_facts: what is installed"),
    ("driver", 1, "command: lspci, for the GPUs, their generation and NVSwitches"),
    ("driver", 1, "command: mokutil --sb-state, for Secure Boot"),
    ("driver", 1, "get_url: the repository's key"),
    ("driver", 1, "command: the key's fingerprint"),
    ("driver", 1, "deb822_repository: the repository"),
    ("driver", 1, "template: the pin to one version"),
    ("driver", 1, "copy: nouveau's blacklist"),
    ("driver", 1, "apt: headers of the running kernel"),
    ("driver", 1, "apt: the driver's packages in one version"),
    ("driver", 5, "dpkg_selections: hold driver, modules, NVML, CUDA library, persistence daemon"),
    ("driver", 1, "command: dkms status, for the running kernel"),
    ("driver", 1, "modprobe: load the module"),
    ("driver", 1, "slurp: the loaded version, to hold against the library's"),
    ("driver", 1, "systemd_service: the persistence daemon"),
    # -- openfleet.gpu.container_toolkit does this in one execution
    ("toolkit", 1, "get_url: the repository's key"),
    ("toolkit", 1, "command: the key's fingerprint"),
    ("toolkit", 1, "apt_repository: the repository"),
    ("toolkit", 1, "apt: the four packages in one version"),
    ("toolkit", 4, "dpkg_selections: hold each of them"),
    ("toolkit", 1, "command: which engines there are"),
    ("toolkit", 1, "slurp: Docker's configuration"),
    ("toolkit", 1, "copy: Docker's configuration with the runtime in it"),
    ("toolkit", 1, "command: docker info, for whether it knows the runtime"),
    ("toolkit", 1, "file: a directory for the refresh service's settings"),
    ("toolkit", 1, "template: its settings"),
    ("toolkit", 2, "systemd_service: the refresh service and its path unit"),
    ("toolkit", 1, "command: nvidia-ctk cdi generate, to hold against the specification"),
    ("toolkit", 1, "slurp: the specification"),
    ("toolkit", 1, "command: getenforce, for SELinux"),
    # -- openfleet.gpu.mig and the command's installation do this in one execution each
    ("layout", 1, "pip or copy: pynvml"),
    ("layout", 1, "command: nvidia-smi --query-gpu, for names, UUIDs, MIG modes and compute modes"),
    ("layout", 1, "command: nvidia-smi mig -lgip, for profiles"),
    ("layout", 1, "command: nvidia-smi mig -lgipp, for placements"),
    ("layout", 1, "command: nvidia-smi mig -lgi, for GPU instances"),
    ("layout", 1, "command: nvidia-smi mig -lci, for compute instances"),
    ("layout", 1, "command: nvidia-smi --query-compute-apps, for who uses them"),
    ("layout", 1, "command: who has the device files open"),
    ("layout", 1, "file: a directory for the layout"),
    ("layout", 1, "copy: the layout"),
    ("layout", 1, "copy: the command that restores it"),
    ("layout", 1, "template: the unit that does so at boot"),
    ("layout", 1, "systemd_service: the unit enabled"),
    # -- the exporter's installation does this in one command
    ("exporter", 1, "pip or unarchive: the exporter's Python packages"),
    ("exporter", 1, "copy: the exporter"),
    ("exporter", 1, "template: its settings"),
    ("exporter", 1, "template: its unit"),
    ("exporter", 1, "file: the directory whose files it serves"),
    ("exporter", 1, "systemd_service: the unit enabled and started"),
    ("exporter", 1, "uri: a scrape, for whether there are GPUs in it"),
    ("layout", 2, "template: the service and the timer of what gpu-layout tells of the host"),
    ("layout", 1, "systemd_service: the timer enabled"),
    # -- the health check after each wave
    ("verify", 1, "command: nvidia-smi mig -lgi"),
    ("verify", 1, "command: nvidia-smi mig -lci"),
    ("verify", 1, "command: nvidia-smi --query-gpu"),
)


def executions() -> int:
    """Return the module executions per host in a run without changes."""
    return sum(number for _role, number, _task in TASKS)
