"""`python -m magray`: the program."""

from magray.program import main

main()
