"""`python -m peagle.cli`, as torchrun starts it."""

from peagle.cli.main import main

main()
