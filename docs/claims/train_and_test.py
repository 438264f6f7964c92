"""Claims of the page on training and testing under different normalizers."""

from collections.abc import Iterator

import polars as pl

from docs.claims import read


def frontier() -> Iterator[tuple[str, str]]:
    long = read("frontier/reach.csv", trained="frontier").filter(pl.col("n") > 10**6)["accuracy"]
    yield "docs/frontier.md", f"answers {long.min():.0f} to {long.max():.0f} % of 160 sets"
    cells = read("frontier/competition.csv")
    yield "docs/frontier.md", f"The mean miss of {len(cells)} predictions is {cells['miss'].abs().mean():.2f} points"
    yield "docs/frontier.md", f"largest {cells['miss'].abs().max():.1f}"
