"""What `bracketflow demo` shows: directions of moving sources under a swinging noise floor."""

from bracketflow.demo.contest import Contest, run_demo
from bracketflow.demo.page import write_page
from bracketflow.demo.words import exactness, setting_words, summary, verdict

__all__ = [
    "Contest",
    "exactness",
    "run_demo",
    "setting_words",
    "summary",
    "verdict",
    "write_page",
]
