"""A matplotlib SVG document as an element of a page: scalable, coloured by the page's CSS variables, with identifiers of its own."""

from __future__ import annotations

import re
from html import escape

from threespo_reports.blocks import variable
from threespo_reports.styles import COLOURS

INK, MUTED, RULE = "#22262b", "#6a737d", "#dfe3e8"  # text, axes, grid lines; the page has a dark form of each
PAGE_COLOURS = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", **{colour: variable(colour) for colour in COLOURS}}


def inline(document: str, name: str, alt: str) -> str:
    """The ``<svg>`` element of ``document`` for a page.

    Args:
        document: SVG by matplotlib. name: prefix of its identifiers, unique on the page. alt: what a screen reader says.
    """
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    svg = f'<svg {box.group(0) if box else ""} role="img" aria-label="{escape(alt, quote=True)}">' + svg[svg.index(">") + 1 :]
    svg = _without_background(svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for colour, value in PAGE_COLOURS.items():
        svg = svg.replace(colour, value)
    return re.sub(r"font(-family)?: ([^;\"]*)'DejaVu Sans'[^;\"]*", r"font\1: \2system-ui, sans-serif", svg).strip()


def _without_background(svg: str) -> str:
    """``svg`` without the white page that matplotlib paints first."""
    return re.sub(r'<path d="[^"]*" style="fill: #ffffff"/>\s*', "", svg, count=1)
