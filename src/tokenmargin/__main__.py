import sys

from tokenmargin.cli import main

sys.exit(main())
