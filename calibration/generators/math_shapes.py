"""Exercises: areas, triangles and solids."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from random import Random

from generators.piece import Piece, pick


def polygon_area(rng: Random, turn: int) -> Piece:
    """Compute a quadrilateral's area from its corners."""
    pts = [
        (rng.randint(-3, 0), rng.randint(-4, 0)),
        (rng.randint(5, 9), rng.randint(-5, 0)),
        (rng.randint(6, 10), rng.randint(3, 8)),
        (rng.randint(-5, 1), rng.randint(4, 9)),
    ]
    cross = []
    lines = []
    for (x1, y1), (x2, y2) in itertools.pairwise([*pts, pts[0]]):
        cross.append(x1 * y2 - x2 * y1)
        lines.append(
            f"({x1}, {y1}) to ({x2}, {y2}): ({x1}) * ({y2}) - ({x2}) * ({y1}) = {cross[-1]}"
        )
    area = Fraction(sum(cross), 2)
    where = ", ".join(str(p) for p in pts)
    ask = pick(
        [
            f"A plot of land has its corners at {where}, in this order. Find the area.",
            f"Apply the shoelace formula to the quadrilateral {where}.",
        ],
        turn,
    )
    dx, dy = pts[2][0] - pts[0][0], pts[2][1] - pts[0][1]
    answer = [
        "For each side take x1 * y2 - x2 * y1.",
        *lines,
        f"The four values add up to {sum(cross)}; half of it is the area, {area} square units.",
        f"The diagonal from {pts[0]} to {pts[2]} has the squared length {dx}^2 + {dy}^2 = "
        f"{dx * dx + dy * dy}.",
    ]
    return Piece.from_lines("Area from coordinates", ask, answer)


def heron(rng: Random, turn: int) -> Piece:
    """Use Heron's formula on an integer triangle, or the Pythagorean theorem."""
    if turn % 2 == 0:
        a, b, c = rng.choice(
            [(13, 14, 15), (7, 15, 20), (9, 10, 17), (11, 13, 20), (10, 13, 13), (17, 25, 28)]
        )
        k = rng.randint(1, 4)
        a, b, c = a * k, b * k, c * k
        s = (a + b + c) // 2
        square = s * (s - a) * (s - b) * (s - c)
        area = math.isqrt(square)
        ask = f"Find the area and the longest side's height in a triangle with sides {a}, {b}, {c}."
        lines = [
            f"Half the perimeter is s = ({a} + {b} + {c}) / 2 = {s}.",
            f"s - a = {s - a}, s - b = {s - b}, s - c = {s - c}.",
            f"Heron: area^2 = {s} * {s - a} * {s - b} * {s - c} = {square}.",
            f"Since {area}^2 = {area * area}, the area is {area}.",
            f"The height on the side {c} is 2 * {area} / {c} = {Fraction(2 * area, c)}.",
        ]
    else:
        m = rng.randint(3, 7)
        n = rng.randint(1, m - 1)
        a, b, c = m * m - n * n, 2 * m * n, m * m + n * n
        ask = (
            f"A ladder {c} decimetres long leans against a wall; its foot stands {a} decimetres "
            "from the wall. How high does it reach? Find the area of the triangle it makes."
        )
        lines = [
            "Wall, ground and ladder form a right angle at the foot of the wall.",
            f"height^2 = {c}^2 - {a}^2 = {c * c} - {a * a} = {b * b}.",
            f"The height is {b} decimetres, because {b}^2 = {b * b}.",
            f"Area: {a} * {b} / 2 = {a * b // 2} square decimetres.",
            f"The triple comes from m = {m} and n = {n}: m^2 - n^2 = {a}, 2mn = {b}, "
            f"m^2 + n^2 = {c}.",
        ]
    return Piece.from_lines("Triangles", ask, lines)


def solids(rng: Random, turn: int) -> Piece:
    """Volumes and surfaces of boxes, cylinders, cones and spheres."""
    if turn % 2 == 0:
        a, b, c = rng.randint(3, 12), rng.randint(3, 12), rng.randint(3, 12)
        k = rng.randint(2, 4)
        diag = a * a + b * b + c * c
        ask = f"A box measures {a} cm, {b} cm and {c} cm. Find volume, surface and the square of "
        ask += f"its diagonal. What happens when all edges are made {k} times as long?"
        surface = 2 * (a * b + b * c + a * c)
        lines = [
            f"Volume: {a} * {b} * {c} = {a * b * c} cubic centimetres.",
            f"Surface: 2 * ({a * b} + {b * c} + {a * c}) = {surface} square centimetres.",
            f"Diagonal squared: {a * a} + {b * b} + {c * c} = {diag}; the diagonal is about "
            f"{math.sqrt(diag):.2f} cm.",
            f"Enlarged {k} times, the volume grows by {k}^3 = {k**3} to {k**3 * a * b * c}.",
            f"The surface grows by {k}^2 = {k * k} to {k * k * surface}.",
        ]
        return Piece.from_lines("A box", ask, lines)
    r, h = rng.randint(2, 9), 3 * rng.randint(2, 6)
    ask = f"A cylinder, a cone and a hemisphere share the radius {r} cm; cylinder and cone are {h} "
    ask += "cm high. Compare their volumes, keeping pi as a symbol."
    ball = Fraction(2 * r**3, 3)
    lines = [
        f"Cylinder: pi * {r}^2 * {h} = {r * r * h} pi.",
        f"Cone: a third of it, {r * r * h // 3} pi.",
        f"Hemisphere: 2/3 * pi * {r}^3 = {ball} pi.",
        f"The ratio of cone to hemisphere is {Fraction(r * r * h, 3) / ball}.",
        f"In cubic centimetres, rounded: {math.pi * r * r * h:.1f}, {math.pi * r * r * h / 3:.1f} "
        f"and {math.pi * float(ball):.1f}.",
        f"The curved surface of the cylinder is 2 * pi * {r} * {h} = {2 * r * h} pi.",
    ]
    return Piece.from_lines("Round solids", ask, lines)
