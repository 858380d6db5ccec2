# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the GPU selectors in `gpu_layout`. `matching` finds their GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .reader import Key, Node, described, is_digits, is_integer, nearest, quoted
from .types import MOST_GPUS, Selector

#: Maximum number of indices in the suggestion for a text such as "0-3" or "0,1".
_MOST_INDICES = 16
_RANGE = re.compile(r"\s*[0-9]{1,4}(?:\s*[-,]\s*[0-9]{1,4})+\s*", re.ASCII)
_UUID = re.compile(r"GPU-([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})")
# NVML writes the domain with eight digits, sysfs with four. lspci omits it. A GPU is function 0 of its device.
_PCI = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([01][0-9A-Fa-f])\.0")

_MODEL = {"model": Key('{model: "H100*"}', required=True)}
_LONGEST_PATTERN = 100
_FORMS = (
    'Write all, an index (0), a UUID ("GPU-" and 36 characters, see nvidia-smi -L), '
    'a PCI address ("0000:3b:00.0") or {model: "H100*"}.'
)


def parse_selector(node: Node) -> Selector | None:
    """Return the normalized selector for an element of `gpus`.

    Returns None after reporting an error.
    """
    value = node.value
    if is_integer(value):
        index = node.integer(0, MOST_GPUS - 1)
        return None if index is None else Selector("index", index)
    if isinstance(value, Mapping):
        return _parse_model(node)
    if isinstance(value, str):
        return _parse_text(node, str(value))
    if isinstance(value, float):
        # YAML 1.1, which Ansible uses, reads 03:00.0 as a number in base 60.
        node.report("expected a GPU, got %s" % described(value), "If it is a PCI address, put quotes around it.")
    else:
        node.report("expected a GPU, got %s" % described(value), _FORMS)
    return None


def parse_single_gpu(node: Node) -> Selector | None:
    """Parse a selector like `parse_selector`, but require a selector of one GPU."""
    selector = parse_selector(node)
    if selector is not None and not selector.names_one_gpu:
        node.report("%s may name several GPUs" % selector, "Name one by its index, UUID or PCI address.")
        return None
    return selector


def _parse_model(node: Node) -> Selector | None:
    fields = node.fields(_MODEL)
    pattern = fields.read("model", Node.text) if fields is not None else None
    if pattern is None:
        return None
    model = fields["model"]
    if len(pattern) > _LONGEST_PATTERN:
        model.report("the pattern has %d characters" % len(pattern), "Write at most %d." % _LONGEST_PATTERN)
    elif not pattern.strip():
        model.report("the pattern is empty", 'Write a glob on the GPU\'s name, like "H100*".')
    elif pattern.startswith("NVIDIA "):
        model.report("names are compared without NVIDIA", "Write %s." % quoted(pattern[len("NVIDIA ") :]))
    else:
        return Selector("model", pattern)
    return None


def _parse_text(node: Node, text: str) -> Selector | None:
    if text == "all":
        return Selector("all")
    uuid, pci = _UUID.fullmatch(text), _PCI.fullmatch(text)
    if uuid:
        return Selector("uuid", "GPU-" + uuid.group(1).lower())
    if pci:
        domain, bus, device = (int(part or "0", 16) for part in pci.groups())
        return Selector("pci", "%04x:%02x:%02x.0" % (domain, bus, device))
    if text.startswith("MIG-"):
        node.report(
            "%s is a MIG device, not a GPU" % quoted(text), "Name the GPU that holds it; nvidia-smi -L shows which."
        )
    elif is_digits(text.strip()):
        node.report(
            "the index %s is a string" % quoted(text),
            "Write it without quotes, in a list: gpus: [%.20s]." % text.strip(),
        )
    elif _RANGE.fullmatch(text):
        node.report("%s is not a list of GPUs" % quoted(text), "Write each index: gpus: %s." % _indices(text))
    elif nearest(text, ["all"]):
        node.report("%s names no GPU" % quoted(text), "Did you mean all?")
    else:
        node.report("%s names no GPU" % quoted(text), _FORMS)
    return None


def _indices(text: str) -> list[int]:
    """Return the indices of a range or list in a text.

    If there are too many, returns an example.
    """
    found: list[int] = []
    for part in text.split(","):
        ends = [int(end) for end in part.split("-")]
        found += range(ends[0], min(ends[-1], ends[0] + _MOST_INDICES) + 1)
    return found if found and len(found) <= _MOST_INDICES else [0, 1, 2, 3]


def selector_to_data(selector: Selector) -> Any:
    """Return the data from which `parse_selector` reads this selector."""
    if selector.kind == "all":
        return "all"
    if selector.kind == "model":
        return {"model": selector.value}
    return selector.value
