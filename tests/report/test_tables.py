import io

from rich.console import Console

from softmax_jax.measures.evaluation import Summary
from softmax_jax.report.tables import print_evaluation

SUMMARIES = [
    Summary("softmax", 16, 98.7, 0.11, 0.05, 0.3, 0.9, None),
    Summary("softmax", 32, 96.1, 0.21, 0.15, 0.3, 0.9, None),
    Summary("adaptive", 16, 98.6, 0.12, 0.04, 0.3, 0.9, 0.4),
    Summary("adaptive", 32, 97.3, 0.22, 0.14, 0.3, 0.9, 0.002),
]


def printed(summaries, width):
    text = io.StringIO()
    print_evaluation(Console(file=text, width=width, force_terminal=False), summaries)
    return text.getvalue()


def line(text, *words):
    (found,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return found.split()


def test_accuracy_interval_loss_and_p_stand_under_their_length():
    text = printed(SUMMARIES, 100)
    assert line(text, "softmax ", "accuracy")[-2:] == ["98.70", "96.10"]
    assert line(text, "adaptive ", "accuracy")[-2:] == ["98.60", "97.30"]
    assert "0.4" in text
    assert "0.002" in text
    assert "±" in text


def test_published_rows_mark_the_unconfirmed_cells_and_show_the_difference():
    text = printed(SUMMARIES, 100)
    assert line(text, "softmax ", "published")[-2:] == ["98.6", "97.1*"]
    differences = [found.split()[-2:] for found in text.splitlines() if found.strip().startswith("difference")]
    assert differences == [["+0.1", "-1.0"], ["+0.0", "+0.2"]]


def test_lengths_that_do_not_fit_the_width_go_to_further_tables():
    many = [Summary("softmax", 2**power, 90.0, 0.1, 0.5, 1.0, 0.5, None) for power in range(1, 15)]
    text = printed(many, 80)
    assert max(len(found) for found in text.splitlines()) <= 80
    headers = [found.split()[1:] for found in text.splitlines() if found.strip().startswith("items")]
    assert [int(n) for header in headers for n in header] == [2**power for power in range(1, 15)]


def test_one_seed_has_no_interval_and_no_p():
    text = printed([Summary("softmax", 16, 98.7, None, 0.05, 0.3, 0.9, None)], 80)
    body = text.split("accuracy: %")[0]
    assert "±" not in body
    assert " p " not in body
