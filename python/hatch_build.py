"""Puts what scripts/stage has built into the wheel, and tags it for its glibc."""

import os
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ("libvramalloc.so", "vramalloc", "vramalloc-probe")


class Staged(BuildHookInterface):
    def initialize(self, version, build_data):
        stage = os.environ.get("VRAMALLOC_STAGE")
        if not stage:
            raise SystemExit("the wheel is built by scripts/package of the repository")
        stage = Path(stage)
        glibc = (stage / "glibc").read_text().strip().replace(".", "_")
        build_data["pure_python"] = False
        # The modules call the library by ctypes, so any Python will do.
        build_data["tag"] = f"py3-none-manylinux_{glibc}_x86_64"
        for name in FILES:
            build_data["force_include"][str(stage / name)] = f"vramalloc/lib/{name}"
