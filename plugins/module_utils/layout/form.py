# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a technique's part of `gpu_layout`.

This file must stay small, because modules that only read layouts send it to hosts.
"""

from __future__ import annotations

from typing import Any, Callable, Container, Iterable, Mapping, Protocol, Sequence

from ..model import Gpu, GpuInstance
from .fields import PartContext
from .reader import Key, Node
from .types import Selector

#: The current daemons or tenants of each technique's service, by the technique's key.
Seen = Mapping[str, Sequence[Any]]


class Form(Protocol):
    """The interface of a technique's part of a layout entry.

    The parser, the writer and the export use it. Each technique's form derives from this class.
    """

    #: Value of `sharing` in `gpu_layout`, and the key of the part.
    key: str
    #: An example of the part, for messages.
    example: Key
    #: Whether a MIG instance can have such a part.
    inside_mig: bool = False
    #: Compute mode of GPUs with this technique.
    compute_mode: str | None
    #: Whether the technique's parts have CDI devices.
    cdi_devices: bool = False
    #: The key of `leases` that limits leases on GPUs with this technique. None if entries with this technique cannot
    #: have leases.
    lease_limit: str | None = None

    def parse(self, node: Node, context: PartContext) -> Any:
        """Return the part of an entry or of a MIG instance as a frozen value.

        Errors are reported to the node.
        """

    def to_data(self, part: Any) -> dict[str, Any]:
        """Return the part as data for `gpu_layout`, without default values."""

    @property
    def without_part(self) -> str:
        """Return the value of `sharing` for a GPU without this part."""
        return "exclusive" if self.compute_mode == "exclusive_process" else "shared"

    def divides(self, part: Any) -> bool:
        """Return whether the part is divided between the GPUs of its entry.

        If so, none of these GPUs can be left out.
        """
        return False

    def names(self, part: Any) -> Sequence[str]:
        """Return the names in the part that must be unique on a host."""
        return ()

    def restricted(self, part: Any, uuids: Container[str], cut: bool, taken: Container[str]) -> Any:
        """Return an exported part without the GPUs that its entry lost.

        `uuids` has the remaining GPUs in lower case. `cut` is true if the entry loses GPUs. `taken` has names that are
        used elsewhere. Returns None if nothing can stay on the remaining GPUs.
        """
        return None if any(name in taken for name in self.names(part)) else part

    def tenants(self, part: Any) -> Sequence[str]:
        """Return the current and earlier names of the part's tenants."""
        return ()

    def export(self, gpu: Gpu, seen: Sequence[Any], instance: GpuInstance | None = None) -> Any:
        """Return the part of an entry that describes the GPU or its instance.

        `seen` has the current daemons or tenants of the technique's service. Returns None if the technique is not used.
        """
        return None

    def export_together(
        self, gpus: Sequence[Gpu], seen: Seen, pin: Callable[[Gpu], Selector] | None, left_out: list[str]
    ) -> dict[str, Any]:
        """Return the parts of GPUs that must be described together, by GPU UUID.

        A part is None for a GPU that no layout can describe. `gpus` are those that no earlier technique describes.
        `seen` has the current daemons or tenants of all techniques. GPUs with equal parts share an entry. `pin` returns
        a GPU's selector, for parts that must name GPUs. Appends a sentence to `left_out` for each state that no layout
        can express.
        """
        return {}

    def describe(self, part: Any) -> str:
        """Return an exported part as text, for a GPU that a layout cannot express."""


def export_parts(
    forms: Iterable[Form], gpu: Gpu, seen: Seen, instance: GpuInstance | None = None
) -> list[tuple[Form, Any]]:
    """Return (form, part) of each technique that shares the GPU or its instance."""
    parts = [(form, form.export(gpu, seen.get(form.key, ()), instance)) for form in forms]
    return [(form, part) for form, part in parts if part is not None]
