"""Shapes in annotations are checked while testing: jaxtyping and beartype wrap every function of the package."""

from jaxtyping import install_import_hook

install_import_hook("tokenmargin", "beartype.beartype")
