"""Draws the ratios of a page's lines as an SVG of horizontal bars. Needs no library, draws nothing else."""

from html import escape

ROW, LETTER, WIDTH, RIGHT = 24, 6.4, 420, 80
HIT, MISSED, NEUTRAL, ASKED = "#2a7f4f", "#b03a2e", "#5b7083", "#222222"


def ratios(lines):
    """The picture of those lines that have a ratio; None where none has."""
    lines = [line for line in lines if line.ratio]
    if not lines:
        return None
    most = max(max(max(line.ratio.rounds), line.least_ratio or 0) for line in lines)
    left = round(LETTER * max(len(line.title) for line in lines)) + 16
    at = lambda value: left + value / most * WIDTH
    height = ROW * (len(lines) + 2)
    size = f'width="{left + WIDTH + RIGHT}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="16">times the best peer: median, least to most of the rounds; black mark: the bar</text>',
    ]
    for row, line in enumerate(lines, 1):
        top, middle = ROW * row + 4, ROW * row + 15
        colour = {"hit": HIT, "MISS": MISSED}.get(line.result, NEUTRAL) if line.least_ratio else NEUTRAL
        found = line.ratio
        parts += [
            f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(line.title)}</text>',
            f'<rect x="{left}" y="{top}" width="{at(found.median) - left:.1f}" height="14" fill="{colour}"/>',
            f'<path d="M{at(min(found.rounds)):.1f} {top + 7}H{at(max(found.rounds)):.1f}" stroke="#bbbbbb" stroke-width="2"/>',
            f'<text x="{at(max(max(found.rounds), line.least_ratio or 0)) + 6:.1f}" y="{middle}">{found.median:.2f}x</text>',
        ]
        if line.least_ratio:
            parts.append(f'<path d="M{at(line.least_ratio):.1f} {top - 2}v18" stroke="{ASKED}" stroke-width="2"/>')
    parts.append(f'<path d="M{at(1):.1f} {ROW}V{height - ROW + 4}" stroke="#888888" stroke-dasharray="3 3"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
