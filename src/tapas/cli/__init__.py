"""The command `tapas`: parse, call one library function, print.

Results go to stdout, status lines and errors to stderr. Exit codes: 0 done, 1 failed with one
line that says why, 2 wrong usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
"""
