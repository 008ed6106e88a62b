"""`python -m leakbench`: the command line, where the script is not on the path."""

from leakbench.cli import main

if __name__ == "__main__":
    main()
