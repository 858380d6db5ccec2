# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a technique's part of `gpu_layout`. Small, because it is sent with modules that only read layouts."""

from __future__ import annotations

from typing import Any, Callable, Container, Iterable, Mapping, Protocol, Sequence

from ..model import Gpu, GpuInstance
from .fields import PartContext
from .reader import Key, Node
from .types import Selector

#: The observed objects of each technique's service, by key.
Seen = Mapping[str, Sequence[Any]]


class Form(Protocol):
    """The part of a technique in an entry of a layout, as the parser, the writer and the export use it.

    A form derives from this class and inherits common members.
    """

    #: Value of `sharing` in `gpu_layout`, and the key of its part.
    key: str
    #: An example of the part, for messages.
    example: Key
    #: Whether a MIG instance can have a part of it.
    inside_mig: bool = False
    #: Compute mode of GPUs that use the technique.
    compute_mode: str | None
    #: Whether its parts have CDI devices.
    cdi_devices: bool = False

    def parse(self, node: Node, context: PartContext) -> Any:
        """Return the part of an entry, or of a MIG instance, as a frozen value. Reports problems to the node."""

    def to_data(self, part: Any) -> dict[str, Any]:
        """Return the part for `gpu_layout`, without values that equal a default."""

    def divides(self, part: Any) -> bool:
        """Return whether the part is divided between the GPUs of its entry, so that none of them can be left out."""
        return False

    def names(self, part: Any) -> Sequence[str]:
        """Return the names in the part that only one part on a host can have."""
        return ()

    def restricted(self, part: Any, uuids: Container[str], cut: bool, taken: Container[str]) -> Any:
        """Return the rest of an exported part on GPUs of an entry: None if nothing of it can stay there.

        `uuids` are those of the GPUs in lower case. `cut`: the entry loses other GPUs. `taken` are names in use elsewhere.
        """
        return None if any(name in taken for name in self.names(part)) else part

    def tenants(self, part: Any) -> Sequence[str]:
        """Return the names of the part's tenants, earlier ones included."""
        return ()

    def export(self, gpu: Gpu, seen: Sequence[Any], instance: GpuInstance | None = None) -> Any:
        """Return the part of an entry that describes the GPU or its instance; None if it does not use the technique.

        `seen` is what its service sees on the host.
        """
        return None

    def export_together(
        self, gpus: Sequence[Gpu], seen: Seen, pin: Callable[[Gpu], Selector] | None, left_out: list[str]
    ) -> dict[str, Any]:
        """Return by UUID the parts of GPUs that can only be described together; None for a GPU that no layout can describe.

        `gpus` are those that no technique before this one describes, `seen` is what the services of all techniques see. GPUs with
        equal parts share an entry. `pin` returns the name of a GPU, if parts are to name GPUs. Adds to `left_out` a sentence for
        what no layout can express.
        """
        return {}

    def describe(self, part: Any) -> str:
        """Return an exported part in words, for a GPU that no layout can express."""


def export_parts(
    forms: Iterable[Form], gpu: Gpu, seen: Seen, instance: GpuInstance | None = None
) -> list[tuple[Form, Any]]:
    """Return the techniques that share the GPU or its instance, each with its part."""
    parts = [(form, form.export(gpu, seen.get(form.key, ()), instance)) for form in forms]
    return [(form, part) for form, part in parts if part is not None]
