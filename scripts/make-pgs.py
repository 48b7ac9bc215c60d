"""Writes picture subtitles (PGS, .sup): one white box, shown from each start to each end.

usage: make-pgs.py FILE WIDTHxHEIGHT START-END...   (seconds)

FFmpeg decodes this format and cannot encode it, so the tests' only source of it is this file.
"""

import struct
import sys

BOX_WIDTH, BOX_HEIGHT = 200, 40
PALETTE, OBJECT, PICTURE, WINDOW, END = 0x14, 0x15, 0x16, 0x17, 0x80
EPOCH_START, NORMAL = 0x80, 0x00
CLOCK = 90_000


def segment(seconds, kind, body=b""):
    return struct.pack(">2sIIBH", b"PG", round(seconds * CLOCK), 0, kind, len(body)) + body


def composition(screen, number, state, boxes):
    width, height = screen
    head = struct.pack(">HHBHBBBB", width, height, 0x10, number, state, 0, 0, len(boxes))
    return head + b"".join(struct.pack(">HBBHH", 0, 0, 0, x, y) for x, y in boxes)


def window(box):
    return struct.pack(">BBHHHH", 1, 0, *box, BOX_WIDTH, BOX_HEIGHT)


def box_pixels():
    """Each row is one run of colour 1 with a 14-bit length, then the end of the row."""
    run = struct.pack(">BHB", 0, 0xC000 | BOX_WIDTH, 1)
    return (run + b"\0\0") * BOX_HEIGHT


def white():
    luma, red, blue, opaque = 235, 128, 128, 255
    return bytes([0, 0, 1, luma, red, blue, opaque])


def picture():
    pixels = box_pixels()
    # The length counts the four bytes of width and height too.
    length = (len(pixels) + 4).to_bytes(3, "big")
    return struct.pack(">HBB", 0, 0, 0xC0) + length + struct.pack(">HH", BOX_WIDTH, BOX_HEIGHT) + pixels


def main(path, size, *spans):
    width, height = (int(part) for part in size.split("x"))
    box = ((width - BOX_WIDTH) // 2, height - BOX_HEIGHT - 20)
    number = 0
    with open(path, "wb") as out:
        for span in spans:
            start, end = (float(part) for part in span.split("-"))
            out.write(segment(start, PICTURE, composition((width, height), number, EPOCH_START, [box])))
            out.write(segment(start, WINDOW, window(box)))
            out.write(segment(start, PALETTE, white()))
            out.write(segment(start, OBJECT, picture()))
            out.write(segment(start, END))
            out.write(segment(end, PICTURE, composition((width, height), number + 1, NORMAL, [])))
            out.write(segment(end, WINDOW, window(box)))
            out.write(segment(end, END))
            number += 2


main(*sys.argv[1:])
