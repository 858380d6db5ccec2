# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List references to Ansible's own documentation for Sphinx.

The reference pages use labels that Ansible's documentation defines.
Without such a list, Sphinx would load Ansible's inventory from the network. Format:
https://www.sphinx-doc.org/en/master/usage/extensions/intersphinx.html
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

#: Pages of Ansible's documentation by label.
LABELS = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "callback_plugins": "plugins/callback.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}
_LABEL = re.compile(r":ref:`(?:[^`<]*<)?([^`<>]+)>?`")
_VARIABLE = re.compile(r":(?:ans)?envvar(?:ref)?:`([^`]+)`")


def write_inventory(path: Path, reference: Path) -> None:
    """Write the inventory file with the labels of `reference` that no page defines."""
    pages = [page.read_text(encoding="utf-8") for page in reference.rglob("*.rst")]
    defined = {label.lower() for page in pages for label in re.findall(r"(?m)^\.\. _([^:\n]+):", page)}
    used = {label for page in pages for label in _LABEL.findall(page)}
    rows = [
        f"{label.lower()} std:label -1 {page_of(label)} {label}"
        for label in sorted(used)
        if label.lower() not in defined
    ]
    # reStructuredText escapes the underscores.
    names = {name.replace("\\_", "_") for page in pages for name in _VARIABLE.findall(page)}
    variables = {name for name in names if not any(f".. envvar:: {name}\n" in page for page in pages)}
    rows += [
        f"{name} std:envvar 1 {LABELS['ansible_configuration_settings']}#envvar-{name} -" for name in sorted(variables)
    ]
    head = "# Sphinx inventory version 2\n# Project: ansible\n# Version: latest\n"
    head += "# The remainder of this file is compressed using zlib.\n"
    path.write_bytes(head.encode() + zlib.compress(("\n".join(rows) + "\n").encode()))


def page_of(label: str) -> str:
    """Return the page of Ansible's documentation that defines a label.

    Raises SystemExit if the label is unknown.
    """
    plugin = re.fullmatch(r"ansible_collections\.(\w+)\.(\w+)\.(\w+?)_(module|filter|test|lookup|role)(?:__.*)?", label)
    if plugin:
        return "collections/%s/%s/%s_%s.html" % plugin.groups()
    if label not in LABELS:
        raise SystemExit(f"tools/site/external.py: add the page of the label {label} to LABELS.")
    return LABELS[label]
