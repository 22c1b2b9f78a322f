"""The picture: a PNG that decodes, in which planted heads look as they were planted."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import pytest

from clearhead.viewer import picture
from clearhead.viewer.colour import GROUND, ROLE_COLOURS, ink_on, luminance, ramp
from clearhead.viewer.picture import GAP, MAP_GROUND, MARGIN, WIDEST, letters
from planted import previous
from views import ROLES, planted_view, twice


def decoded(png: bytes) -> np.ndarray:
    """Pixels of an RGB PNG without row filters; checks every chunk's sum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks.append((kind, body))
        at += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack(">IIBB", chunks[0][1][:10])
    assert (depth, colour) == (8, 2)
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def thumbnail(pixels: np.ndarray, column: int, side: int = 256) -> np.ndarray:
    left = MARGIN + column * (side + GAP)
    return pixels[MARGIN : MARGIN + side, left : left + side]


@pytest.mark.tiny
def test_a_planted_previous_token_head_is_a_bright_line_below_the_diagonal():
    pixels = decoded(picture(planted_view(twice(16), layers=1)))
    thumb = thumbnail(pixels, ROLES.index("previous-token"))
    for i in range(2, 32):  # 8 pixels a token
        assert luminance(tuple(thumb[8 * i + 4, 8 * (i - 1) + 4].tolist())) > 0.8
        assert luminance(tuple(thumb[8 * i + 4, 8 * i + 4].tolist())) < 0.05
        if i < 31:  # the future is the ground, not a weight of 0
            assert tuple(thumb[8 * i + 4, 8 * (i + 1) + 4]) == MAP_GROUND


def test_a_first_token_column_does_not_drown_the_rest():
    """The scale is set without the first column: what a head does with its last few per cent is seen."""
    view = planted_view(twice(16), layers=1, heads=[previous])
    cells = view.trace.observation(0).map_mean[0, 0]
    cells *= 0.02
    cells[:, 0] = 0.98
    thumb = thumbnail(decoded(picture(view)), 0)
    assert luminance(tuple(thumb[8 * 20 + 4, 8 * 19 + 4].tolist())) > 0.8


def test_every_head_has_a_bar_of_its_roles_colour_and_heads_without_role_none():
    pixels = decoded(picture(planted_view(twice(16), layers=1)))
    for column, role in enumerate(ROLES):
        left = MARGIN + column * (256 + GAP)
        assert tuple(pixels[MARGIN + 256 + 9, left + 10]) == ROLE_COLOURS[role]


def test_the_address_is_written_under_a_map():
    pixels = decoded(picture(planted_view(twice(16), layers=1)))
    top, left = MARGIN + 256 + 20, MARGIN
    written = pixels[top : top + 14 : 2, left : left + 48 : 2].max(-1) > 200
    for n, letter in enumerate("L0H0"):
        assert (written[:, 6 * n : 6 * n + 5] == letters()[letter]).all()
    assert tuple(pixels[0, 0]) == GROUND


def test_every_letter_a_caption_needs_is_drawn():
    assert {c for name in ROLES for c in name} | set("0123456789LH.") <= set(letters())
    assert all(dots.shape == (7, 5) for dots in letters().values())


def test_many_heads_stay_within_the_widest_picture():
    pixels = decoded(picture(planted_view([0, 1, 2], layers=1, heads=[previous] * 40)))
    assert pixels.shape[1] <= WIDEST


def test_one_token_has_a_picture():
    pixels = decoded(picture(planted_view([0], layers=1, heads=[previous])))
    assert pixels.shape == (2 * MARGIN + 256 + 44, 2 * MARGIN + 256, 3)


def test_more_weight_is_always_lighter_and_ink_can_be_read_on_it():
    lightness = [luminance(ramp(n / 255)) for n in range(256)]
    assert all(a < b + 1e-4 for a, b in itertools.pairwise(lightness))
    for n in range(256):
        ground, ink = luminance(ramp(n / 255)), luminance(ink_on(ramp(n / 255)))
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) >= 4.5  # WCAG AA
