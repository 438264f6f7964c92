"""The agreement of models of the published recipe with the published rows, in words, beside what nulls score."""

from collections.abc import Mapping

import numpy as np

from softmax_jax.experiment.measures.agreement import Agreement, with_nulls
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report.accuracy import UNCONFIRMED
from softmax_jax.experiment.report.evaluated import Evaluated

METHOD, OTHER = "adaptive", "ssmax"
NULLS = {
    "softmax twice": "our softmax row itself",
    "SSMax for the adaptive row": "our ssmax row",
    "no model": "a formula without a model",
}
"""The rows that replicate nothing, in words."""


def published_lengths(run: Evaluated) -> list[int]:
    """Returns the measured lengths with published accuracies; none unless both published rows were measured."""
    if not {BASELINE, METHOD} <= run.published.keys() & set(run.normalizers):
        return []
    return sorted(set(run.frame["n"]) & run.published[BASELINE].keys())


def agreements(run: Evaluated) -> Mapping[str, Agreement]:
    """Returns how near a run lies to both published rows at its lengths, and how near nulls lie."""
    lengths = published_lengths(run)
    frame = run.frame.sort("seed", maintain_order=True)
    rows = {
        name: np.array([frame.filter(normalizer=name, n=n)["accuracy"].to_list() for n in lengths]).T
        for name in (BASELINE, METHOD, OTHER)
        if name in run.normalizers
    }
    published = [[run.published[name][n] for n in lengths] for name in (BASELINE, METHOD)]
    return with_nulls(rows, lengths, (published[0], published[1]))


def replication(run: Evaluated) -> str | None:
    """Says how far both rows lie from the published, what the method gains, and whether nulls come as near.

    None where nothing published was measured.
    """
    if not (lengths := published_lengths(run)):
        return None
    models, *nulls = (by_name := agreements(run)).values()
    interval = f" ± {models.gain_interval:.1f}" if models.seeds > 1 else ""
    unread = sum(n in UNCONFIRMED for n in lengths)
    source = f", {unread} without a source that could be read" if unread else ""
    others = ", ".join(f"{null.method:.1f} ({NULLS[name]})" for name, null in zip([*by_name][1:], nulls))
    nearest = min(null.method for null in nulls)
    verdict = "no nearer" if nearest > models.method else "as near, so nearness alone shows nothing"
    return (
        f"Our {BASELINE} row lies {models.baseline:.1f} points from the published one, our {METHOD} row "
        f"{models.method:.1f} (root mean square over {len(lengths)} lengths{source}). {METHOD.capitalize()} gains "
        f"{models.gain:.1f}{interval} points in the mean of these lengths; published are {models.published_gain:.1f}. "
        f"Rows that replicate nothing come {verdict}: in points from the published {METHOD} row, {others}."
    )
