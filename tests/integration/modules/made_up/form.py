# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define how a layout describes lanes."""

from __future__ import annotations

from ...layout.form import Form
from ...layout.reader import Key
from .model import KEY, Lanes, in_words


class LanesForm(Form):
    key = KEY
    example = Key("lanes: {count: 2}")
    compute_mode = "default"

    def parse(self, node, context):
        fields = node.fields({"count": Key("count: 2", required=True)})
        return None if fields is None else Lanes(fields.read("count", lambda field: field.integer(1)))

    def to_data(self, part):
        return {"count": part.count}

    def export(self, gpu, seen, instance=None):
        counts = [one.count for one in seen if one.gpu_uuid == gpu.uuid]
        return Lanes(counts[0]) if counts else None

    def describe(self, part):
        return in_words(part.count)
