"""How Sphinx builds the site. It reads nothing from the network."""

from importlib import metadata

project = "intarsia"
release = metadata.version(project)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
myst_heading_anchors = 3

default_role = "literal"  # docstrings write code between single backticks
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections|typing|os|_thread)\..*"),  # only a look-up on the network could link them
    ("py:class", r"Kind|Fate|intarsia\.(core\.dim|runtime)\..*"),  # no part of the public API
]


def link_error(app, env, node, content):
    """Link the errors that a docstring names under `Raises`, where they stand without their module."""
    if node.get("reftype") != "exc":
        return None
    target = f"{project}.errors.{node['reftarget']}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "exc", target, node, content)


def setup(app):
    app.connect("missing-reference", link_error)
