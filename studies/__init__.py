"""Studies of the documentation, one script each: python -m studies.NAME.

A study that has a task or a preset of its own gives it a name here, by which the scripts of the repository take it.
"""

from softmax_jax.experiment.configs import register_preset
from softmax_jax.experiment.tasks import register_task

register_task("clrs_text", "studies.clrs_text.task:ClrsText")
register_preset("clrs_text", "studies.clrs_text.preset")
