import sys

from .words.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
