"""The lines of the page of predictions on the board: which family of normalizers wins or loses on which task."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from docs.claims import board_order, predicted, verdict
from softmax_jax.experiment.board.order import SIGNIFICANT, ranks_of
from softmax_jax.experiment.board.protocol import PROTOCOL

MAX, QUERY, COPY, ABSENT, TRIGGER, SIGNAL = (
    "transformer_max_retrieval",
    "multi_query",
    "copy",
    "set_complement",
    "trigger",
    "signal",
)
WITH_ZEROS = "sparsemax", "entmax15", "top_k"
WITH_SINKS = "softmax1", "sink_softmax", "softpick", "sigmoid"
Judged = tuple[str, str]


def board() -> Iterator[tuple[str, str]]:
    """Judges each prediction by the board that ships."""
    order = board_order()
    cells = {tuple(cell): gain for *cell, gain in order.scores.select("method", "task", "column", "gain").rows()}

    def gains(methods: Sequence[str], tasks: Sequence[str], column: str) -> list[float]:
        return [cells[method, task, column] for method in methods for task in tasks]

    def largest_of(methods: Sequence[str], task: str, bound: float) -> Judged:
        found = gains(methods, [task], "trained")
        best = methods[int(np.argmax(found))]
        return verdict(max(found) < bound), f"the most is {max(found):+.1f}, of `{best}`"

    def listed(methods: Sequence[str], tasks: Sequence[str], column: str, holds: Callable[[float], bool]) -> Judged:
        found = gains(methods, tasks, column)
        return verdict(*map(holds, found)), ", ".join(f"{gain:+.1f}" for gain in found)

    def adaptive() -> Judged:
        retrieval = gains(["adaptive"], [MAX, QUERY, COPY], "swapped")
        every = gains(["adaptive"], [job.name for job in PROTOCOL.jobs], "swapped")
        said = f"{', '.join(f'{gain:+.1f}' for gain in retrieval)}; the least of all tasks {min(every):+.1f}"
        return verdict(sum(gain > 1 for gain in retrieval) >= 2, min(every) > -1), said

    def other_sums() -> Judged:
        tasks = [job.name for job in PROTOCOL.jobs]
        lost = [sum(gain <= -20 for gain in gains([method], tasks, "swapped")) for method in ("sigmoid", "softpick")]
        return verdict(*(count >= 5 for count in lost)), "{} and {} tasks".format(*lost)

    def signal() -> Judged:
        tests = order.scores.filter(task=SIGNAL, column="trained").drop_nulls("p")
        shown = (tests["p"] < SIGNIFICANT).sum()
        return verdict(shown < len(tests) / 4), f"{shown} of {len(tests)}"

    def columns() -> Judged:
        ranks = order.places.pivot("column", index="method", values="rank")
        agreement = np.corrcoef([ranks_of(-ranks[column].to_numpy()) for column in ("trained", "swapped")])[0, 1]
        return verdict(agreement < 0.7), f"{agreement:.2f}"

    yield from predicted(
        (
            (
                "Trained with them, SSMax and the adaptive temperature gain at least 3 points on max retrieval",
                *listed(["ssmax", "adaptive"], [MAX], "trained", lambda gain: gain >= 3),
            ),
            (
                "Trained with it, SSMax gains at least 3 points with many queries and on copy",
                *listed(["ssmax"], [QUERY, COPY], "trained", lambda gain: gain >= 3),
            ),
            (
                "Swapped in, hardmax and sparsemax lose at least 20 points on the absent class and on the trigger",
                *listed(["hardmax", "sparsemax"], [ABSENT, TRIGGER], "swapped", lambda gain: gain <= -20),
            ),
            (
                "Trained with them, sparsemax, entmax15 and top-k gain less than 2 points on the absent class",
                *largest_of(WITH_ZEROS, ABSENT, 2),
            ),
            (
                "Trained with them, no method with a sink gains 3 points on the trigger, which softmax solves",
                *largest_of(WITH_SINKS, TRIGGER, 3),
            ),
            (
                "Swapped in, the adaptive temperature gains over 1 point on two of max retrieval, many queries and "
                "copy, and loses 1 on no task",
                *adaptive(),
            ),
            (
                "Swapped in, sigmoid and softpick, whose sums are not 1, each lose at least 20 points on five tasks",
                *other_sums(),
            ),
            ("Trained on the signal, fewer than a quarter of the methods are shown to differ from softmax", *signal()),
            ("Methods rank otherwise trained than swapped in: the ranks correlate below 0.7", *columns()),
        )
    )
