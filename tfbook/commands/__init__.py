"""The command line, `python -m tfbook`: what it understands, and what it does.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

from tfbook.commands.arguments import ABOUT, languages, parser
from tfbook.commands.finetuning import finetune
from tfbook.commands.measuring import bench, inspect
from tfbook.commands.serving import serve
from tfbook.commands.training import rate_course, say, seen, train

__all__ = [
    "ABOUT",
    "languages",
    "parser",
    "rate_course",
    "say",
    "seen",
    "train",
    "finetune",
    "bench",
    "inspect",
    "serve",
]
