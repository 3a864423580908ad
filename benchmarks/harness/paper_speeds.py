"""The images per second in the paper's Table 7, with one GPU per stage."""

from collections.abc import Iterator
from typing import NamedTuple

# Rows and columns as printed (\label{table_acceleration}): images/s (utilisation of GPU 1, ..., K in %), speedup. BP is
# printed with every K, always with the same numbers.
PRINTED = """
K | method | WRN-28-10                 | ResNet-101
1 | BP     | 188.16 (99)               | 104.3 (98)
2 | DDG    | 280.32 (81,69) 1.49       | 155.5 (75,84) 1.49
2 | FR     | 215.04 (80,60) 1.14       | 125.0 (70,67) 1.20
2 | DGL    | 349.44 (99,85) 1.86       | 194.6 (97,87) 1.89
2 | FDG    | 354.56 (98,87) 1.88       | 175.0 (84,80) 1.88
3 | DDG    | 312.28 (57,64,51) 1.66    | 176.8 (61,58,45) 1.70
3 | FR     | 232.96 (51,68,70) 1.24    | 136.2 (76,70,39) 1.31
3 | DGL    | 514.56 (97,94,83) 2.73    | 273.0 (96,92,78) 2.62
3 | FDG    | 512.00 (85,93,75) 2.72    | 217.0 (74,63,62) 2.10
4 | DDG    | 373.76 (90,60,69,35) 1.99 | 189.0 (49,52,40,49) 1.81
4 | FR     | 281.60 (59,62,35,31) 1.50 | 152.3 (51,61,37,48) 1.46
4 | DGL    | 611.84 (82,95,82,67) 3.25 | 332.5 (93,87,87,71) 3.19
4 | FDG    | 601.60 (71,94,80,61) 3.20 | 234.3 (60,68,59,54) 2.30
"""


class Speed(NamedTuple):
    """A speed that the paper prints.

    busy: utilisation of each GPU in percent.
    speedup: as printed; "" for BP.
    """

    network: str
    K: int
    method: str
    images_per_second: str
    busy: str
    speedup: str


def read() -> Iterator[Speed]:
    head, *lines = [[part.strip() for part in line.split("|")] for line in PRINTED.strip().splitlines()]
    for column in (2, 3):
        for line in lines:
            speed, busy, *speedup = line[column].split()
            yield Speed(head[column], int(line[0]), line[1], speed, busy.strip("()"), "".join(speedup))


SPEEDS = tuple(read())
