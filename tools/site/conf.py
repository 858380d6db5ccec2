# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of Sphinx for the documentation site.

tools/site/build.py copies this file beside the pages.
"""

import os
from pathlib import Path

project = "openfleet.gpu"
copyright = "openfleet.gpu contributors"
version = release = os.environ["OPENFLEET_VERSION"]
extensions = ["myst_parser", "sphinx.ext.intersphinx", "sphinx_antsibull_ext"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_title = f"openfleet.gpu {version}"
html_copy_source = False
html_show_sphinx = False
# The reference pages link to ansible-core's documentation. Each build writes the inventory of these links itself, so that it
# needs no network.
intersphinx_mapping = {
    "ansible": ("https://docs.ansible.com/projects/ansible/latest/", str(Path(__file__).with_name("external.inv")))
}
# Examples that contain Jinja in YAML or a command's output are not always valid in their block's language.
suppress_warnings = ["misc.highlighting_failure"]
