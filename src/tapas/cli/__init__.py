"""The command `tapas`: parse, call one library function, print.

Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 something went wrong and one line
says what, 2 mistyped, 130 stopped with Ctrl-C.
"""
