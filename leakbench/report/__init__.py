"""What a run says, for a person: the table on the terminal and the page in the browser."""

from leakbench.report.page import write_report
from leakbench.report.table import print_table
from leakbench.report.together import write_together

__all__ = ["print_table", "write_report", "write_together"]
