"""The exercise of chapter 06 on how long a machine takes."""

from typing import Any

from tfbook.teaching.exercises._spec import Exercise, expect_plain

# predict-seconds --------------------------------------------------------------------------------


def predict_seconds(
    rows: int, d_in: int, d_out: int, bytes_per_number: int, flops_per_second: float,
    bytes_per_second: float,
) -> float:  # fmt: skip
    """Predict how long the product of an input and a matrix of parameters takes.

    The input has the shape (rows, d_in), the matrix (d_in, d_out). Input, matrix and result cross
    the bus to memory once each. The machine computes and moves at the same time, so that the
    slower of the two says how long it takes.

    rows: rows of the input. d_in: its features. d_out: features of the result. bytes_per_number:
    2 for 16-bit numbers, 4 for 32-bit numbers. flops_per_second: what the machine computes, a
    multiplication with its addition counted as 2. bytes_per_second: what it moves.
    Returns: seconds, a float.
    """
    ...


def _seconds(
    rows: int, d_in: int, d_out: int, size: int, flops_rate: float, bytes_rate: float
) -> tuple[float, float]:
    """Return how long the machine computes, and how long it moves."""
    moved = size * (rows * d_in + d_in * d_out + rows * d_out)
    return 2 * rows * d_in * d_out / flops_rate, moved / bytes_rate


def _product(rows: int, d_in: int, d_out: int, size: int, flops: float, bytes_: float) -> dict:
    return dict(
        rows=rows, d_in=d_in, d_out=d_out, bytes_per_number=size, flops_per_second=flops,
        bytes_per_second=bytes_,
    )  # fmt: skip


def _seconds_few_rows(seconds: Any) -> None:
    """With few rows the machine waits for input, parameters and result to be moved."""
    m, a, b, size, rate = 3, 500, 200, 2, 1e9
    case = m, a, b, size, 1e12, rate
    computing, moving = _seconds(*case)
    expect_plain(
        seconds, _product(*case), moving, "With few rows, moving takes longer than computing.",
        mistakes={
            "Both times were added. The machine does both at once, and the longer one counts.":
                computing + moving,
            "This is the shorter of the two times. The longer one is the ceiling.": computing,
            "Half the FLOPs were counted, and the shorter time was taken.": computing / 2,
            "The parameters were not moved: d_in·d_out numbers come from memory.":
                size * (m * a + m * b) / rate,
            "Only the parameters were moved. The input comes from memory too, and the result goes "
            "back.": size * a * b / rate,
            "The input was not moved: rows·d_in numbers come from memory.":
                size * (a * b + m * b) / rate,
            "The result was not moved: rows·d_out numbers go back to memory.":
                size * (m * a + a * b) / rate,
            "The parameters were moved for each row. They come once, and all rows use them.":
                size * (m * a + m * a * b + m * b) / rate,
            "This is how long it would take if a number had one byte: multiply by "
            "bytes_per_number.": moving / size,
            "Bits were moved. `bytes_per_number` already says bytes.": 8 * moving,
        },
    )  # fmt: skip


def _seconds_many_rows(seconds: Any) -> None:
    """With many rows the machine is busy computing."""
    case = 4096, 500, 200, 2, 1e12, 1e11
    computing, moving = _seconds(*case)
    expect_plain(
        seconds, _product(*case), computing, "With many rows, computing takes longer than moving.",
        mistakes={
            "Multiplications were counted. Each has an addition with it: 2 FLOPs.": computing / 2,
            "Both times were added, though moving goes on while the machine computes.":
                computing + moving,
            "This is how long moving takes. Here computing takes longer.": moving,
            "FLOPs were multiplied by the bytes of a number. A product is 2 FLOPs, whatever its "
            "numbers are.": 2 * computing,
            "This is the time of one row. The matrix is multiplied by each of them.":
                computing / 4096,
        },
    )  # fmt: skip


def _seconds_other_machines(seconds: Any) -> None:
    """Which time is the longer one depends on the sizes and on the machine, not on rows alone."""
    for case in (
        (64, 576, 1536, 2, 1e15, 3e12),
        (64, 576, 1536, 4, 5e10, 2e10),
        (1, 700, 900, 4, 1e9, 1e11),
        (5000, 3, 2, 4, 1e12, 1e10),
    ):
        computing, moving = _seconds(*case)
        expect_plain(
            seconds, _product(*case), max(computing, moving),
            f"Here computing takes {computing:.3g} s and moving {moving:.3g} s.",
        )  # fmt: skip


PREDICT_SECONDS = Exercise(
    name="predict-seconds",
    title="How long will it take?",
    level=1,
    section='chapters/06_complexity, section "The roof"',
    stub=predict_seconds,
    properties=(_seconds_few_rows, _seconds_many_rows, _seconds_other_machines),
    hints=(
        "Work out two times, as if the machine had nothing else to do: one for computing, one for "
        "moving.",
        "Computing: rows·d_in·d_out multiplications, each with an addition. Moving: three "
        "matrices. What shape has each?",
        "With `computing = flops / flops_per_second` and `moving = n_bytes / bytes_per_second`, "
        "the answer is one of the two. Which, if both go on at once?",
    ),
)

EXERCISES = (PREDICT_SECONDS,)
