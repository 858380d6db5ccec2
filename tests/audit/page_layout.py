# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the page that site.yml writes, for a made-up fleet.

Functions return HTML for the cases of test_page.py.
"""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.plugin_utils.fleet import page

#: Profile names with start and size, for a GPU with eight memory slices.
DIVIDED = [
    [("1g.10gb+me", 0, 1), ("1g.10gb", 1, 1), ("2g.20gb", 2, 2), ("3g.40gb", 4, 4)],
    [("1g.10gb", start, 1) for start in range(7)],
    [("1g.24gb+me.all", 0, 2), ("1g.24gb-me", 2, 2), ("2g.48gb+gfx", 4, 4)],
    [("7g.141gb", 0, 8)],
]


def _gpu(index, instances=(), **more):
    placed = [{"profile": profile, "placement": {"start": start, "size": size}} for profile, start, size in instances]
    return {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "asked": "MIG on",
        "before": "exclusive",
        "after": "exclusive",
        "changed": index % 2 == 0,
        "placement_units": 8,
        "instances": placed,
        **more,
    }


def _host(name, **more):
    gpus = [_gpu(index, instances) for index, instances in enumerate([*DIVIDED, ()])]
    return {"name": name, "note": "", "warnings": ["The driver has a known vulnerability."], "gpus": gpus, **more}


def _page(hosts, summary="10 GPUs on 2 hosts, 28 MIG instances"):
    return page.to_text({"hosts": hosts, "summary": summary}, made_at="2026-11-22 06:00 UTC")


def usual():
    return _page([_host("gpu-%02d.example.org" % number) for number in range(3)])


def stretched(long):
    told = {"after": long, "asked": long, "before": long, "name": long}
    return _page(
        [_host(long * 2, note=long, warnings=[long], gpus=[_gpu(0, **told), _gpu(1, DIVIDED[1], name=long)])], long
    )


def hostile(texts):
    return _page(
        [
            _host(text, note=text, warnings=[text], gpus=[_gpu(0, [(text, 0, 8)], name=text), _gpu(1, after=text, asked=text)])
            for text in texts
        ],
        "".join(texts),
    )  # fmt: skip


def large():
    return _page([_host("gpu-%04d.example.org" % number) for number in range(1000)])


def empty():
    return _page([])
