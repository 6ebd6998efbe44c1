"""What happens between the steps of ``net.fit``: ``callbacks=[EarlyStopping(patience=3)]``."""

from latte.model.calls import answer_wrong_calls
from latte.runtime.callbacks import Callback, EarlyStopping, History, Run
from latte.runtime.evaluation import Evaluation

__all__ = ["Callback", "EarlyStopping", "Evaluation", "History", "Run"]

answer_wrong_calls(globals(), __all__)
