"""The page of the board holds what its cells give."""

from docs.board import PAGE, board_section
from softmax_jax.experiment.report.tables import put_into


def test_the_page_has_the_sentences_and_the_table_of_the_board_that_ships():
    page = PAGE.read_text()
    assert put_into(page, {"board": board_section()}) == page, "run python -m docs.board"
