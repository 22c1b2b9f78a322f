"""All heads as one PNG: the maps in a layer × head grid, each with its address, role and score."""

from __future__ import annotations

import functools
import struct
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8

from clearhead.addresses import Head
from clearhead.viewer.colour import GROUND, RGB, ROLE_COLOURS, ramp_bytes
from clearhead.viewer.data import Shown
from clearhead.viewer.view import View

INK: RGB = (232, 236, 242)
SOFT: RGB = (148, 159, 174)
MAP_GROUND: RGB = (15, 19, 30)
WIDEST = 4096  # pixels, whatever the number of heads
MARGIN, GAP, CAPTION = 28, 18, 44


def picture(view: View | Shown) -> bytes:
    """The picture as PNG bytes, at most about 4,096 pixels wide. Needs a run observed with maps (`look(…, cells=64)`)."""
    heads = view.trace.heads()
    layers = [call.layer for call in view.trace.calls]
    columns = max(head.head for head in heads) + 1
    side = max(48, min(256, (WIDEST - 2 * MARGIN) // columns - GAP))
    height = 2 * MARGIN + len(layers) * (side + CAPTION + GAP) - GAP
    width = 2 * MARGIN + columns * (side + GAP) - GAP
    canvas = np.full((height, width, 3), GROUND, dtype=np.uint8)
    for head in heads:
        top = MARGIN + layers.index(head.layer) * (side + CAPTION + GAP)
        left = MARGIN + head.head * (side + GAP)
        canvas[top : top + side, left : left + side] = _map(view, head, side)
        _caption(canvas, view, head, top + side + 8, left, side)
    return png(canvas)


def _map(view: View | Shown, head: Head, side: int) -> UInt8[np.ndarray, "side side 3"]:
    """A head's map, `side` pixels square. The page draws the same: see page/maps.js."""
    cells = view.trace.observation(head.layer).map_mean[0, head.head].cpu().numpy().astype(np.float64)
    if cells.size == 0:
        return np.full((side, side, 3), MAP_GROUND, dtype=np.uint8)
    others = cells[:, 1:][cells[:, 1:] > 0]  # the first token's column would drown the rest
    top = max(float(np.quantile(others, 0.995)), 1e-6) if others.size else 1.0
    levels = np.rint(255 * np.sqrt(np.clip(cells / top, 0, 1))).astype(np.intp)
    colours = np.frombuffer(ramp_bytes(), dtype=np.uint8).reshape(256, 3)[levels]
    colours = np.where((cells > 0)[..., None], colours, np.array(MAP_GROUND, dtype=np.uint8))
    rows, across = (np.arange(side) * n // side for n in cells.shape)
    scaled: UInt8[np.ndarray, "side side 3"] = colours[rows][:, across]
    return scaled


def _caption(
    canvas: UInt8[np.ndarray, "height width 3"], view: View | Shown, head: Head, top: int, left: int, side: int
) -> None:
    """Address, and role with its score, as far as there is room; the role's colour as a bar."""
    label = view.label(head)
    size = 2 if side >= 200 else 1
    room = side // (6 * size)  # letters in a line
    if label is not None:
        canvas[top : top + 4, left : left + side] = ROLE_COLOURS[label.role]
    write(canvas, str(head)[:room], top + 12, left, INK, size)
    if label is not None:
        score = f"{label.score:.2f}"
        name = label.role if len(label.role) + len(str(head)) + len(score) + 2 <= room else ""
        write(canvas, name, top + 12, left + 6 * size * (len(str(head)) + 1), SOFT, size)
        if len(str(head)) + len(score) < room:
            write(canvas, score, top + 12, left + side - 6 * size * len(score), INK, size)


@functools.cache
def letters() -> dict[str, Bool[np.ndarray, "7 5"]]:
    """The letters a caption can hold, each 7 × 5 dots."""
    lines = (Path(__file__).parent / "assets" / "letters.txt").read_text(encoding="utf-8").splitlines()
    drawn = (line.split() for line in lines)
    return {letter: np.array([[dot == "#" for dot in row] for row in rows]) for letter, *rows in drawn}


def write(canvas: UInt8[np.ndarray, "height width 3"], text: str, top: int, left: int, colour: RGB, size: int) -> None:
    """Put text on the canvas, each dot `size` pixels square; a letter that is not drawn leaves its place empty."""
    for n, letter in enumerate(text):
        dots = letters().get(letter)
        if dots is not None:
            dots = dots.repeat(size, 0).repeat(size, 1)
            x = left + 6 * size * n
            canvas[top : top + dots.shape[0], x : x + dots.shape[1]][dots] = colour


def png(pixels: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """An RGB image (height, width, 3) as PNG (ISO 15948): one header, one block of zlib-packed rows, one end."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row begins with its filter, 0: none
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )
