"""The table of models of PyTorch on the page on any model, from docs/data/torch_models.csv."""

from docs.claims import read
from softmax_jax.experiment.report.tables import markdown_table


def torch_table() -> str:
    """Returns the table of models of PyTorch: of one that is refused, the reason."""
    differences = {"outputs": "logits", "under SSMax": "ssmax", "weights": "weights"}
    return markdown_table(
        ["model", "kind", "softmaxes", *differences],
        [
            [row["model"], row["kind"], f"refused: {row['refused'].partition(' (')[0]}", "", "", ""]
            if row["refused"]
            else [row["model"], row["kind"], row["softmaxes"], *(f"{row[name]:.0e}" for name in differences.values())]
            for row in read("torch_models.csv").iter_rows(named=True)
        ],
    )
