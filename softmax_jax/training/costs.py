r"""What training costs, as formulas.

With width $w$, $n$ items per set and $S$ sets per batch, a step of one seed takes
$S\,(n\,(3w^2 + 28w) + 18w^2 + 38w)$ multiply-adds. Divided over $d$ devices each takes a $d$-th of them.
"""

from softmax_jax.tasks.max_retrieval import CLASSES, FEATURES


def item_multiply_adds(width: int, normalizers: int = 1) -> int:
    """Multiply-adds that one more item costs forward: two layers, its logit, and its place in every weighted sum.

    >>> item_multiply_adds(width=128)
    18048
    """
    return FEATURES * width + width**2 + (1 + normalizers) * width


def step_multiply_adds(items: int | float, sets: int, width: int) -> int | float:
    """Multiply-adds of the matrix products in one training step of one seed, forward and backward.

    The backward pass takes twice the forward one, less what would be the gradient of the data. The biases of key and
    value enter by products. The penalty Σw², a sum over the parameters, is left out.

    >>> step_multiply_adds(items=16, sets=128, width=128)
    146374656
    """
    forward = items * item_multiply_adds(width) + 6 * width**2 + (1 + 2 + CLASSES) * width
    of_data = items * FEATURES * width + width
    return sets * (3 * forward - of_data)
