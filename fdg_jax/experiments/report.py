"""`python -m fdg_jax.experiments.report RUN` writes the page of a run directory again."""

import sys

from fdg_jax.report.report_page import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
