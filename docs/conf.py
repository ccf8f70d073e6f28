"""The documentation site for Sphinx: `make docs` builds it, scripts/dev/site_pages.py writes its pages."""

import inspect
from typing import Any

from pygments import token
from pygments.lexer import RegexLexer

from hpcckpt import __version__

project = "hpcckpt"
release = version = __version__
html_title = f"hpcckpt {__version__}"
copyright = ""  # noqa: A001 - Sphinx calls it so
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
html_theme = "furo"
html_show_sphinx = html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["wide.css"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["myst.strikethrough"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


class HjsonLexer(RegexLexer):
    """Hjson, which Pygments does not know: comments, keys, texts, numbers."""

    name = "Hjson"
    tokens = {  # noqa: RUF012 - as Pygments asks for it
        "root": [
            (r"(#|//).*", token.Comment),
            (r'"[^"]*"(?=\s*:)', token.Name.Tag),
            (r'"[^"]*"', token.String),
            (r"-?\d[\d.eE+-]*", token.Number),
            (r"true|false|null", token.Keyword.Constant),
            (r"[^\s\w]", token.Punctuation),
            (r"\w+|\s+", token.Text),
        ]
    }


def skip(_app: Any, _what: str, _name: str, member: Any, is_skipped: bool, _options: Any) -> bool:
    """Leave out the fields of dataclasses: the text of the class has them."""
    return is_skipped or inspect.ismemberdescriptor(member)


def setup(app: Any) -> None:
    """Register the lexer, and what to leave out."""
    app.add_lexer("hjson", HjsonLexer)
    app.connect("autodoc-skip-member", skip)
