"""`python -m kvcanary_cli`."""

from kvcanary_cli.main import main

if __name__ == "__main__":
    main()
