# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A table of prices as recording rules of Prometheus."""

from __future__ import annotations

DOCUMENTATION = r"""
name: price_rules
short_description: Recording rules for what GPUs cost, from a table of prices
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Makes a rule for each line of the table. The first line that a GPU's model matches counts.
  - A GPU has one price, however many parts it is in.
options:
  _input:
    description:
      - C(model), a glob on the model's name, with or without the vendor's in front; C(price), of one GPU for one hour.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the rules
  ansible.builtin.debug:
    msg: "{{ [{'model': 'H100*', 'price': 2.4}, {'model': '*', 'price': 1}] | openfleet.gpu.price_rules }}"
"""

RETURN = r"""
_value:
  description: Rules with the keys C(record) and C(expr).
  type: list
  elements: dict
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.openfleet.gpu.plugins.plugin_utils.promql import literal, quote

RECORD = "gpu:price_per_hour"
#: What tells the parts of a GPU apart, or its exporter's state, and not the GPU.
PART_LABELS = "driver_version, instance, job, mig_instance, mig_profile, workload"


def price_rules(prices):
    """See DOCUMENTATION."""
    rules, earlier = [], []
    for number, line in enumerate(prices):
        where = "gpu_monitoring_prices[%d]" % number
        try:
            price = float(line["price"])
            model = str(line["model"])
        except (KeyError, TypeError, ValueError) as error:
            raise AnsibleFilterError(
                "%s: it has to be like {model: H100*, price: 2.40}, a number (%r)" % (where, error)
            ) from error
        if not 0 <= price < float("inf"):
            raise AnsibleFilterError(
                "%s.price: %r is no price; give what one GPU costs for an hour" % (where, line["price"])
            )
        pattern = glob_pattern(model)
        others = "".join(", model!~%s" % quote(one) for one in earlier)
        series = "gpu:info{model=~%s%s}" % (quote(pattern), others)
        rules.append({"record": RECORD, "expr": "0 * max without (%s) (%s) + %s" % (PART_LABELS, series, repr(price))})
        earlier.append(pattern)
    return rules


def glob_pattern(glob):
    """A regular expression of RE2, anchored by Prometheus, for a glob with * and ?; `NVIDIA ` may be in front."""
    parts = {"*": ".*", "?": "."}
    return "(NVIDIA )?" + "".join(parts.get(char) or literal(char) for char in glob)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"price_rules": price_rules}
