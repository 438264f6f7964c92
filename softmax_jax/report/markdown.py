"""Tables in Markdown pages that commands write anew."""

from collections.abc import Iterable, Mapping, Sequence


def put_into(page: str, tables: Mapping[str, str]) -> str:
    r"""The page with each table between its marks, `<!-- NAME -->` and `<!-- /NAME -->`.

    Raises ValueError if a mark is missing.

    >>> put_into("A\n<!-- a -->\nold\n<!-- /a -->\nB", {"a": "new"})
    'A\n<!-- a -->\nnew\n<!-- /a -->\nB'
    """
    for name, table in tables.items():
        before, begin, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not begin or not end:
            raise ValueError(f"the page has no place for {name}: put <!-- {name} --> and <!-- /{name} --> into it")
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A table in Markdown.

    >>> table(["name", "value"], [["a", "1"]])
    '| name | value |\n|---|---|\n| a | 1 |'
    """
    head, *body = ("| " + " | ".join(cells) + " |" for cells in (columns, *rows))
    return "\n".join([head, "|---" * len(columns) + "|", *body])
