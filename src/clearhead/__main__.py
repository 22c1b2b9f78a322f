"""`python -m clearhead`: the same as the `clearhead` command."""

from clearhead.cli import main

main()
