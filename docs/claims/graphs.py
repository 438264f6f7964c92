"""Claims of the page on graphs."""

from collections.abc import Iterator

from docs.claims import read, with_half

PAGE = "docs/graphs.md"
SETTINGS = {PAGE: ("mean of five models and 95 % interval", "10 % by chance")}


def neighbours() -> Iterator[tuple[str, str]]:
    accuracy = read("neighbours/accuracy.csv")
    softmax = accuracy.filter(normalizer="softmax", degree=256)["accuracy"]
    assert len(softmax) == 5
    yield PAGE, f"softmax finds the largest neighbour of 256 in {with_half(softmax.to_numpy())} % of nodes"
    by_model = accuracy.pivot("normalizer", index=["degree", "seed"], values="accuracy")
    long = by_model.filter(by_model["degree"] >= 64)
    for name in ("adaptive", "ssmax", "entmax15", "hardmax"):
        assert (long[name] > long["softmax"]).all()
    yield PAGE, "in each of the five models at 64 neighbours and more"
