# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Warn of a container image that has a tag alone."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pinned_image
short_description: Warn of a container image that is named by a tag alone
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the name of the image as it is. Without a digest it warns, once a run for each image, as a user who can write to the
    registry decides what the tag means.
options:
  _input:
    description: The image, as C(name:tag@sha256:digest).
    type: str
    required: true
  variable:
    description: The variable that names it, for the warning.
    type: str
    required: true
positional: variable
"""

EXAMPLES = r"""
- name: Warn of the image
  ansible.builtin.debug:
    msg: "{{ dcgm_exporter_image | openfleet.gpu.pinned_image('dcgm_exporter_image') }}"
"""

RETURN = r"""
_value:
  description: The image.
  type: str
"""

import re

from ansible.utils.display import Display

#: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests (digest)
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")

display = Display()


def pinned_image(image, variable):
    """See DOCUMENTATION."""
    if not DIGEST.search(image):
        # The same text for all hosts, so that Ansible shows it once.
        display.warning(
            "%s: %s is named by a tag alone, and the registry decides what that is. Add its digest, NAME:TAG@sha256:DIGEST: "
            "docs/dcgm_exporter.md#name-the-image-by-its-digest." % (variable, image)
        )
    return image


class FilterModule:
    def filters(self):
        return {"pinned_image": pinned_image}
