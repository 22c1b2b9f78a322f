"""The colours of weights and roles.

Weights run from the ground to a bright end through lightness first and hue second (OKLCH, Ottosson 2020), so that more is
always lighter (on a dark ground), in print and for any colour vision. Roles have the colours of Okabe and Ito (2008),
which stay apart for colour-blind eyes, and always stand beside their name.
"""

from __future__ import annotations

import math

RGB = tuple[int, int, int]

GROUND: RGB = (13, 17, 23)
ROLE_COLOURS: dict[str, RGB] = {
    "previous-token": (86, 180, 233),
    "induction": (230, 159, 0),
    "duplicate-token": (204, 121, 167),
    "first-token": (140, 148, 160),
    "self": (0, 158, 115),
    "broad": (213, 94, 0),
    "local": (240, 228, 66),
}


def ramp(t: float) -> RGB:
    """The colour of a share t between 0 and 1, clipped, for a dark ground.

    >>> ramp(0.0), ramp(1.0)
    ((15, 19, 30), (253, 244, 188))
    """
    t = min(1.0, max(0.0, t))
    lightness = 0.19 + 0.77 * t
    chroma = 0.022 + 0.05 * t + 0.14 * math.sin(math.pi * t**0.85)
    hue = 268 + 192 * t**1.1  # blue over violet, red and orange to pale yellow
    return _srgb(lightness, chroma, math.radians(hue))


def ramp_bytes() -> bytes:
    """256 colours of the ramp, three bytes each, for whoever draws elsewhere."""
    return bytes(c for n in range(256) for c in ramp(n / 255))


def ink_on(colour: RGB) -> RGB:
    """Black or white, whichever reads better on a colour (WCAG relative luminance).

    >>> ink_on((255, 255, 200)), ink_on((20, 20, 60))
    ((0, 0, 0), (255, 255, 255))
    """
    return (0, 0, 0) if luminance(colour) > 0.179 else (255, 255, 255)


def on_ground(colour: RGB) -> str:
    """Ink that reads well on a colour, and the colour, as rich names a style.

    >>> on_ground((255, 255, 200))
    'rgb(0,0,0) on rgb(255,255,200)'
    """
    ink, ground = (f"rgb({','.join(map(str, c))})" for c in (ink_on(colour), colour))
    return f"{ink} on {ground}"


def luminance(colour: RGB) -> float:
    """Relative luminance, 0 to 1, as WCAG 2 defines it."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _srgb(lightness: float, chroma: float, hue: float) -> RGB:
    """OKLCH to 8-bit sRGB, clipped to the gamut."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return (_channel(linear[0]), _channel(linear[1]), _channel(linear[2]))


def _channel(linear: float) -> int:
    linear = min(1.0, max(0.0, linear))
    return round(255 * (12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055))
