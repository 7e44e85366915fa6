"""Prints the names of all codes that a library of CUDA's runtime has: its path is the argument."""

import ctypes
import sys

name_of = ctypes.CDLL(sys.argv[1]).cudaGetErrorName
name_of.restype = ctypes.c_char_p
for code in range(1100):
    name = name_of(code).decode()
    if name != "unrecognized error code":
        print(code, name)
