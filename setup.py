"""The native kernels of tapas: built where there is a compiler, left out where there is none."""

from pathlib import Path

from setuptools import Extension, setup

# Exponentials are only exact where products are not rounded before they are added; see exp2_of.
FLAGS = ["-O3", "-std=c++17", "-ffp-contract=fast", "-fopenmp", "-fvisibility=hidden"]

setup(
    ext_modules=[
        Extension(
            "tapas.native._kernels",
            sources=["src/tapas/native/kernels.cpp"],
            depends=[str(file) for file in Path("src/tapas/native").glob("*.h")],
            extra_compile_args=FLAGS,
            extra_link_args=["-fopenmp"],
            language="c++",
            optional=True,  # everything works without them, more slowly; `tapas info` tells
        )
    ]
)
