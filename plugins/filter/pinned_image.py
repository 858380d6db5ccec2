# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Warn about a container image without a digest."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pinned_image
short_description: Warn about a container image without a digest
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the name of the image unchanged. If the name has no digest, the filter warns once per run and image, because users
    with write access to the registry can move the tag to another image.
options:
  _input:
    description: The image, for example C(name:tag@sha256:digest).
    type: str
    required: true
  variable:
    description: Name of the variable, for the warning.
    type: str
    required: true
positional: variable
"""

EXAMPLES = r"""
- name: Show the image
  ansible.builtin.debug:
    msg: "{{ dcgm_exporter_image | openfleet.gpu.pinned_image('dcgm_exporter_image') }}"
"""

RETURN = r"""
_value:
  description: The image.
  type: str
  sample: nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-distroless@sha256:...
"""

import re

from ansible.utils.display import Display

#: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests (digest)
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")

display = Display()


def pinned_image(image, variable):
    """See DOCUMENTATION."""
    if not DIGEST.search(image):
        # Use the same text for all hosts, so that Ansible shows it once.
        display.warning(
            "%s: %s has no digest, so the registry decides which image is used. Add the digest (NAME:TAG@sha256:DIGEST), as in "
            "docs/dcgm_exporter.md#name-the-image-by-its-digest." % (variable, image)
        )
    return image


class FilterModule:
    def filters(self):
        return {"pinned_image": pinned_image}
