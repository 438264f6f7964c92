"""The page of the board and the tables beside its data hold what its cells give."""

from docs.board import PAGE, TABLES, sections
from docs.claims import board_order
from softmax_jax.experiment.commands.rank import write_order
from softmax_jax.experiment.report.tables import put_into


def test_the_page_has_what_the_board_that_ships_gives():
    page = PAGE.read_text()
    assert put_into(page, sections()) == page, "run python -m docs.board"


def test_the_tables_are_those_of_the_board_that_ships(tmp_path):
    write_order(tmp_path, board_order())
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in TABLES.iterdir()}, "run python -m docs.board"
