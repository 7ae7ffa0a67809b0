"""The one style of the pictures of docs/benchmarks: an SVG that follows the light or dark theme of its reader. Needs no library, draws no figure."""

from html import escape

# Classes, so that one place decides, and a reader's own style sheet can too.
CSS = """
svg { font-family: sans-serif; font-size: 12px }
.back { fill: #ffffff } text { fill: #1f2933 } .head { font-size: 15px; font-weight: bold } .name, .ours-name { font-weight: bold }
.note { font-size: 11px; fill: #5b6770 } .ours { fill: #2a7f4f } .peer { fill: #9aa7b3 } .missed { fill: #b03a2e } .plain { fill: #5b7083 }
.spread { stroke: #55606b; stroke-width: 2 } .asked { stroke: #222222; stroke-width: 2 } .even { stroke: #888888; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } text { fill: #e6edf3 } .note { fill: #9aa7b3 } .ours { fill: #3fa66d } .peer { fill: #5c6873 }
.missed { fill: #d0564a } .plain { fill: #7d93a6 } .spread { stroke: #c3ccd5 } .asked { stroke: #f0f3f6 } .even { stroke: #8b949e }
}
"""


def picture(width, height, title, parts):
    """A whole picture. The title is what a screen reader says of it."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    start = [head, f"<title>{escape(title)}</title>", f"<style>{CSS}</style>", '<rect class="back" width="100%" height="100%"/>']
    return "\n".join([*start, *parts, "</svg>"]) + "\n"


def text(x, y, words, kind=None, anchor=None):
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{round(x, 1):g}" y="{round(y, 1):g}"{kind}{anchor}>{escape(words)}</text>'


def bar(x, y, width, kind, height=14):
    return f'<rect x="{round(x, 1):g}" y="{round(y, 1):g}" width="{max(width, 1.5):.1f}" height="{height}" rx="2" class="{kind}"/>'


def line(path, kind):
    return f'<path d="{path}" class="{kind}" fill="none"/>'
