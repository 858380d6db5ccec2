# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/variables*.md from the argument specs of roles and playbooks."""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from . import known
from .check import COMMON_WORD

_HEAD = """# Variables

Variables of the collection's roles and playbooks, generated from their argument specs (`make variables`):

| variables of | page |
|---|---|
%s
## Checks

These playbooks check variables on every host before anything changes:

- `site.yml` and `reset.yml` check all variables, except that `reset.yml` ignores the value of `gpu_layout`.
- `audit.yml`, `rightsize.yml`, `bundle.yml`, `export.yml`, `check_gpu.yml` and `accept.yml` check their own variables.

They check **values** (type, choices, range, format) and **names**.
If a value contains facts, the role that gathers the facts checks the value later.
A name that is probably a misspelt variable is an error. Some other names cause a warning:

| name | example | result |
|---|---|---|
| has one of the collection's prefixes and resembles one of its variables | `gpu_site_wave` | error |
| has one of the prefixes and resembles no variable | `gpu_layout_h100` | warning |
| differs from exactly one variable by one typing error | `gpu_layuot_on_busy` | error |
| is the name of exactly one variable with one word missing or wrong | `gpu_on_busy` | error |
| resembles a variable in another way, and begins with `gpu`, `nvidia`, `dcgm` or `container_t` | `gpu_layouts` | warning |
| any other name | `my_gpu_layout` | nothing |

In a typing error, two neighbouring letters of a word are exchanged, or one letter is missing, wrong or extra \
(`nvidia_drver_version`).
A missing, wrong or extra letter counts only in variables of at least 15 characters, in words of at least five letters.
The first and last letter of the word must be right. \
So `gpu_train_timeout` is no misspelt `gpu_drain_timeout`, and causes only a warning.

A missing word is an error if the name still has three words (`layout_on_busy`) or begins with %s.
A wrong word is an error if the name has four or more words and begins with one of these words or `%s` (`gpu_mig_on_busy`).

Both cause only a warning if the value of another variable uses the name in a template.

```text
h100-03: gpu_layout_on_busy: unknown value "drian". Did you mean drain? It is one of fail, wait, drain, force.
h100-03: gpu_site_wave: unknown variable. Did you mean gpu_site_waves? If it is yours, list it in gpu_site_own_variables.
Nothing was changed.
```

Give your own variables other names (`site_h100_layout`), or list them as globs:

```yaml
gpu_site_own_variables: [gpu_layout_h100*]
```
"""
# Pages: file name, title, and the roles and playbooks on it. A page has at most 2,000 words.
_PAGES = (
    ("variables-layout.md", "layouts and drains", ("gpu_layout", "gpu_drain", "vgpu_limiter", "site.yml")),
    (
        "variables-hosts.md",
        "drivers, containers and host checks",
        (
            *("nvidia_driver", "container_toolkit", "gpu_simulator"),
            *("bundle.yml", "export.yml", "check_gpu.yml", "accept.yml"),
        ),
    ),
    ("variables-kubernetes.md", "Kubernetes, Slurm", ("gpu_kubernetes", "gpu_slurm")),
    ("variables-monitoring.md", "metrics and monitoring", ("dcgm_exporter", "gpu_monitoring")),
    ("variables-audit.md", "audit and right-sizing", ("gpu_audit", "audit.yml", "rightsize.yml")),
)
_MARK = re.compile(r"\b[CVOBIM]\((.*?)\)|\bP\((.*?)#\w+\)")


def pages() -> dict[str, str]:
    """Return the text of each page by file name.

    Raises ValueError if a role or playbook is on no page or on several pages.
    """
    owners = [owner for _name, _title, on_page in _PAGES for owner in on_page]
    wrong = [
        owner for owner in sorted({*owners, *known.owners()}) if owners.count(owner) != known.owners().count(owner)
    ]
    if wrong:
        raise ValueError(
            "_PAGES in plugins/plugin_utils/variables/page.py must have each role and playbook once: %s"
            % ", ".join(wrong)
        )
    texts = {"variables.md": _HEAD % ("".join(map(_index_row, _PAGES)), _first_words(), COMMON_WORD)}
    for name, title, on_page in _PAGES:
        parts = ["# Variables: %s\n\n[All pages, and the checks](variables.md).\n" % title]
        for owner in on_page:
            parts.append("\n## %s\n\n| Variable | Type | Default | Meaning |\n|---|---|---|---|\n" % _title(owner))
            parts += [_row(variable, option) for variable, option in known.of_owner(owner).items()]
        texts[name] = "".join(parts)
    return texts


def _first_words() -> str:
    words = ["`%s`" % word for word in known.first_words() if word != COMMON_WORD]
    return "%s or %s" % (", ".join(words[:-1]), words[-1])


def _index_row(page: tuple[str, str, tuple[str, ...]]) -> str:
    name, title, owners = page
    return "| %s: %s | [%s](%s) |\n" % (title, ", ".join(map("`{}`".format, owners)), name, name)


def _title(owner: str) -> str:
    return "Playbook %s" % owner if owner.endswith(".yml") else "Role [%s](../roles/%s/README.md)" % (owner, owner)


def _row(name: str, option: Mapping[str, Any]) -> str:
    kind = option.get("type", "str")
    if kind == "list":
        kind = "list[%s]" % option.get("elements", "raw")
    if option.get("choices"):
        kind = "%s: %s" % (kind, ", ".join("`%s`" % choice for choice in option["choices"]))
    default = "required" if option.get("required") else _value(option["default"]) if "default" in option else "none"
    text = option.get("description", "")
    meaning = " ".join(str(text if isinstance(text, str) else text[0]).split())
    cells = ("`%s`" % name, kind, default, _MARK.sub(_code, meaning))
    return "| %s |\n" % " | ".join(cell.replace("|", "\\|") for cell in cells)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "`%s`" % text if text else "empty"


def _code(match: re.Match[str]) -> str:
    return "`%s`" % (match.group(1) or match.group(2))
