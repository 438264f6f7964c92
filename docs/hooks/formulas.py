"""Turns the formulas of a page into MathML as the site is built, so that a browser needs no script to show them."""

import html
import itertools
import re
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element

MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""What the extension arithmatex leaves of a formula."""
LIMITS_BELOW = {"∑", "max", "min"}
OPERATORS = {"⟺", "⟨", "⟩"}
"""The converter takes these for variables."""
TIGHT = {"/", "|"}


def on_page_content(content: str, **_: Any) -> str:
    """MathML in the place of each formula. Raises ValueError for LaTeX that cannot be converted."""
    return MARKED.sub(lambda match: mathml(html.unescape(match[2]), display=match[1] == "div"), content)


def mathml(latex: str, *, display: bool) -> str:
    """The formula as a `math` element."""
    root = convert_to_element(latex.replace(r"\arg", r"\operatorname{arg}"), display="block" if display else "inline")
    for element in root.iter():
        if element.text:
            element.text = html.unescape(element.text)
    for element in list(root.iter()):
        mend(element)
    converted = ElementTree.tostring(root, encoding="unicode")
    if "\\" in converted:
        raise ValueError(f"no MathML for {latex!r}: {converted}")
    return converted


def mend(parent: Element) -> None:
    """Makes names of functions, limits, brackets and fractions what they are in print, among an element's children."""
    for child in parent:
        text = child.text or ""
        if child.tag == "mi" and text in OPERATORS:
            child.tag = "mo"
        elif child.tag == "mo" and (text == "∞" or (text.isalpha() and parent.tag != "munder")):
            child.tag = "mi"
        elif child.tag == "mo" and text in TIGHT:
            child.attrib |= {"lspace": "0", "rspace": "0"}
        elif child.tag == "msub" and child[0].text in LIMITS_BELOW:
            child.tag = "munder"
            child[0].set("movablelimits", "true")
    for index, (left, right) in reversed(list(enumerate(itertools.pairwise(parent), 1))):
        names = [is_function(element) for element in (left, right)]
        if any(names) and {left.tag, right.tag}.isdisjoint({"mo", "mspace"}):
            parent.insert(index, Element("mspace", width="0.17em"))


def is_function(element: Element) -> bool:
    """Whether it is the name of a function, such as log, which has more than one letter."""
    return element.tag == "mi" and len(element.text or "") > 1
