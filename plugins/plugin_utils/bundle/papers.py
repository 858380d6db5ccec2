# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a bundle's texts: manifest, checksums, variables and README. Pure.

The variables are for the air-gapped site.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping

from .fetch import readable
from .mirror import Mirror
from .model import Item, Wants, without_password
from .wants import KUBERNETES

MANIFEST, SUMS, VARIABLES, README = "manifest.json", "SHA256SUMS", "gpu_bundle.yml", "README.md"


def manifest(
    version: str,
    items: Iterable[Item],
    mirrors: Iterable[Mirror],
    wants: Wants,
    python: Mapping[str, Any],
    old: Iterable[str],
) -> str:
    """Return the manifest.

    The manifest has no date and no name of this machine, so that equal bundles have equal manifests.
    """
    elsewhere = {what: set(hosts) for what, hosts in wants.named.items()}
    for mirror in mirrors:
        for what, hosts in mirror.elsewhere.items():
            elsewhere.setdefault(what, set()).update(hosts)
    content = {
        "schema": 1,
        "collection": version,
        "repositories": [
            {
                "folder": mirror.source.folder,
                "from": without_password(mirror.source.url),
                "signed_by": list(mirror.key_fingerprints),
                "valid_until": mirror.valid_until,
                "packages": {name: sorted(versions) for name, versions in sorted(mirror.versions.items())},
            }
            for mirror in sorted(mirrors, key=lambda mirror: mirror.source.folder)
        ],
        "needed_from_the_distribution": [
            {"name": name, "on": platform, "hosts": sorted(hosts)}
            for (name, platform), hosts in sorted(elsewhere.items())
        ],
        "python": python,
        "files": [
            {
                "path": item.path,
                "what": item.what,
                "from": item.origin,
                "sha256": item.sha256,
                "bytes": item.size,
                "hosts": sorted(item.hosts),
            }
            for item in sorted(items, key=lambda item: item.path)
        ],
        "no_longer_needed": sorted(old),
    }
    return json.dumps(content, indent=1, sort_keys=False) + "\n"


def sums(items: Iterable[Item]) -> str:
    """Return the checksums for `sha256sum --check SHA256SUMS`."""
    return "".join("%s  %s\n" % (item.sha256, item.path) for item in sorted(items, key=lambda item: item.path))


def variables(path: str, url: str, wants: Wants, items: Iterable[Item], nvml: str) -> str:
    """Return the variables to set at the air-gapped site.

    Fingerprints of keys are not among them, because a bundle must not decide which keys verify it.
    """
    roles = {source.role for source in wants.repositories}
    lines = [
        "# Written by openfleet.gpu.bundle for the air-gapped side. Use it with: ansible-playbook -e @%s" % VARIABLES,
        "# These variables override the inventory. You can also copy them into it.",
        "---",
        "# The bundle's path on the controller, and its address for hosts: a web server, or file:// if each host has a copy.",
        _line("gpu_bundle_path", path),
        _line("gpu_bundle_url", url or "http://CHANGE-ME.example.org/bundle"),
        "",
    ]
    if "nvidia_driver" in roles:
        base = "{{ gpu_bundle_url }}/repositories/driver/{directory}/{architecture}"
        lines += [_line("nvidia_driver_repository_url", base), _line("nvidia_driver_repository_key_url", "")]
    if "container_toolkit" in roles:
        base = "{{ gpu_bundle_url }}/repositories/container-toolkit/"
        lines += [
            _line("container_toolkit_repository_url", base + "{family}/{architecture}"),
            _line("container_toolkit_repository_key_url", base + "gpgkey"),
        ]
    runfiles = _named(items, "NVIDIA's installer")
    if len(runfiles) == 1:
        lines.append(_line("nvidia_driver_runfile", "{{ gpu_bundle_path }}/%s" % runfiles[0].path))
    elif runfiles:
        lines += ["# nvidia_driver_runfile differs between hosts, see %s." % MANIFEST]
    toolkit = _named(items, "container toolkit")
    if toolkit and len({tuple(sorted(item.hosts)) for item in toolkit}) == 1:
        files = [{"path": "{{ gpu_bundle_path }}/%s" % item.path, "sha256": item.sha256} for item in toolkit]
        lines.append(_line("container_toolkit_files", files))
    elif toolkit:
        lines += ["# container_toolkit_files differs between hosts, see %s." % MANIFEST]
    for what, variable in KUBERNETES.items():
        named = _named(items, what)
        if len(named) == 1:
            lines.append(_line(variable, "{{ gpu_bundle_path }}/%s" % named[0].path))
        elif named:
            lines.append("# %s differs between hosts, see %s." % (variable, MANIFEST))
    if nvml:
        lines += [
            _line("gpu_layout_nvml_source", "wheel"),
            _line("gpu_layout_nvml_wheel", "{{ gpu_bundle_path }}/%s" % nvml),
        ]
    if wants.leases:
        lines.append(_line("gpu_kubernetes_lease_wheels", "{{ gpu_bundle_path }}/python"))
    return "\n".join(lines).rstrip() + "\n"


def _named(items: Iterable[Item], what: str) -> list[Item]:
    return sorted((item for item in items if item.what == what), key=lambda item: item.path)


def _line(name: str, value: Any) -> str:
    # JSON is also YAML.
    return "%s: %s" % (name, json.dumps(value, ensure_ascii=False))


def readme(items: Iterable[Item], mirrors: Iterable[Mirror], elsewhere: int, python: Mapping[str, Any]) -> str:
    items = list(items)
    lines = [
        "# Bundle for the GPU hosts of an air-gapped site",
        "",
        "Made by the playbook openfleet.gpu.bundle: %d files, %s. `%s` lists the origin of each file and the hosts that need it."
        % (len(items), readable(sum(item.size for item in items)), MANIFEST),
        "",
        "1. Copy this folder to the air-gapped side, and verify it: `sha256sum --check --quiet %s`" % SUMS,
    ]
    if "controller" in python:
        lines.append(
            "2. Set up the controller (%s): `pip install --require-hashes --only-binary=:all: --no-index --find-links python "
            "--requirement python/requirements.txt`" % python["controller"]["for"]
        )
    else:
        lines.append("2. Install ansible-core and nvidia-ml-py on the controller. They are not in the bundle.")
    archive = _named(items, "the collection")
    if archive:
        lines.append("3. Install the collection: `ansible-galaxy collection install --offline %s`" % archive[0].path)
    else:
        lines.append("3. Install the collection. It is not in the bundle.")
    lines += [
        "4. Serve this folder to the hosts with any web server. For a test: `python3 -m http.server --directory . 8080`",
        "5. Set its path and address in `%s`." % VARIABLES,
        "6. Run `ansible-playbook -i inventory -e @%s openfleet.gpu.site --check --diff`" % VARIABLES,
        "",
        "The repositories keep their vendors' signatures, and hosts verify them.",
        "Do not change the fingerprints in your inventory. The indexes list more packages than the bundle has.",
    ]
    if elsewhere:
        lines += [
            "",
            "Hosts need %d more packages from their distribution or its mirror: see `needed_from_the_distribution` in `%s`."
            % (elsewhere, MANIFEST),
        ]
    ending = ["- %s until %s" % (m.source.folder, m.valid_until) for m in mirrors if m.valid_until]
    if ending:
        lines += ["", "These indexes expire. Make the bundle again before:", "", *ending]
    return "\n".join(lines) + "\n"
