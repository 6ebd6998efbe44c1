"""What happens between the steps of ``net.fit``: ``callbacks=[EarlyStopping(patience=3)]``."""

from latte.runtime.callbacks import Callback, EarlyStopping, History, Run
from latte.runtime.evaluation import Evaluation

__all__ = ["Callback", "EarlyStopping", "Evaluation", "History", "Run"]
