"""The crates of the workspace by their modules, for the checks in ci/."""

import json
import pathlib
import re
import subprocess
import typing

KINDS = {"lib", "rlib", "cdylib", "staticlib", "proc-macro", "bin"}

# Comments, strings and characters. A lifetime has no second quotation mark.
NO_CODE = re.compile(
    r"""
    //[^\n]* | (?P<comment>/\*)
    | \b[bc]?r(?P<fence>\#*)".*?"(?P=fence) | "(?:\\.|[^"\\])*"
    | '(?:\\u\{[^}]*\}|\\x..|\\.|[^'\\])'
    """,
    re.DOTALL | re.VERBOSE,
)
# Something for tests alone, unless it is a field, an arm or an expression.
FOR_TESTS = re.compile(
    r"""
    \#\[cfg\((?:all\()?test\b[^]]*\] (?:\s*\#\[[^]]*\])*
    \s*(?:pub(?:\s*\([^)]*\))?\s+)?
    (?:mod|use|fn|impl|struct|enum|const|static|type|trait|unsafe|extern|async|macro_rules)\b [^;{]*
    """,
    re.VERBOSE,
)
# A macro may leave the name to its caller.
MODULE = re.compile(r"\bmod\s+(?:r#|\$)?(\w+)\s*([;{])")
FILE = re.compile(r'#\[path = "([^"]+)"\]\s*(?:pub(?:\([^)]*\))?\s+)?$')

USE = re.compile(r"\buse\s+([^;]+);")
WORD = re.compile(r"\w+|[{},]")
PATH = re.compile(r"(?<![\w:])(?:self\s*::\s*)?(?:crate|super)(?:\s*::\s*\w+)+")


class Crate(typing.NamedTuple):
    package: str
    # lib.rs or main.rs, from the root of the repository.
    root: pathlib.Path


class Module(typing.NamedTuple):
    # Names from the root, which has none.
    path: tuple
    file: pathlib.Path
    # As long as the file, with spaces in place of what is no code, what is for
    # tests and what stands in other modules.
    code: str

    def line(self, offset):
        return self.code.count("\n", 0, offset) + 1

    def imports(self):
        """What the module imports: (path, name that it gets, offset)."""
        for found in USE.finditer(self.code):
            for path, name, at in _leaves(found[1]):
                yield path, name, found.start(1) + at

    def named(self):
        """What the module imports or names by a path: (path, offset)."""
        for path, _, at in self.imports():
            yield path, at
        for found in PATH.finditer(USE.sub(lambda found: " " * len(found[0]), self.code)):
            yield re.findall(r"\w+", found[0]), found.start()

    def from_root(self, path):
        """A path as it is at the root of the crate; None if it does not begin
        with crate, self or super."""
        if path[0] == "crate":
            return path[1:]
        place = list(self.path)
        if path[0] not in ("self", "super"):
            return None
        while path and path[0] in ("self", "super"):
            place, path = (place if path[0] == "self" else place[:-1]), path[1:]
        return place + path


def crates():
    """The libraries and programs of the workspace."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [
        Crate(package["name"], pathlib.Path(target["src_path"]).relative_to(pathlib.Path.cwd()))
        for package in answer["packages"]
        for target in package["targets"]
        if KINDS.intersection(target["kind"])
    ]


def modules(crate):
    """The modules of a crate, its root first, without those for tests."""
    return list(_of_file((), crate.root, crate.root.parent))


def _of_file(path, file, folder):
    text = file.read_text()
    yield from _of_code(path, file, text, _without_tests(_code_of(text)), folder)


def _of_code(path, file, text, code, folder):
    """folder: where the files of the modules inside lie."""
    own, inner, end = code, [], 0
    for found in MODULE.finditer(code):
        if found.start() < end:
            continue
        name, start = found[1], found.end()
        if found[2] == "{":
            end = _closing(code, start - 1)
            body = _blank(code[:start]) + code[start:end] + _blank(code[end:])
            own = own[:start] + _blank(own[start:end]) + own[end:]
            inner.append(_of_code(path + (name,), file, text, body, folder / name))
            continue
        given = FILE.search(text[: found.start()])
        places = [folder / f"{name}.rs", folder / name / "mod.rs"]
        place = file.parent / given[1] if given else next(p for p in places if p.exists())
        below = place.parent if place.name == "mod.rs" else place.with_suffix("")
        inner.append(_of_file(path + (name,), place, below))
    yield Module(path, file, own)
    for module in inner:
        yield from module


def _leaves(tree):
    """What a `use` names: (path, name that it gets, offset)."""
    stack, path, alias, at = [[]], [], None, 0
    for word in WORD.finditer(tree + ","):
        if word[0] == "{":
            stack.append(path)
        elif word[0] in ",}":
            if len(path) > len(stack[-1]):
                while len(path) > 1 and path[-1] == "self":
                    path = path[:-1]
                yield path, alias or path[-1], at
            if word[0] == "}":
                stack.pop()
            path, alias = stack[-1], None
        elif alias == "":
            alias = word[0]
        elif word[0] == "as":
            alias = ""
        else:
            path, at = path + [word[0]], word.start()


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def _code_of(text):
    """The text with spaces in place of comments, strings and characters."""
    parts, at = [], 0
    while found := NO_CODE.search(text, at):
        end = found.end()
        # Comments of this kind can stand in each other.
        depth = 1 if found["comment"] else 0
        while depth and (mark := re.compile(r"/\*|\*/").search(text, end)):
            depth += 1 if mark[0] == "/*" else -1
            end = mark.end()
        parts += text[at : found.start()], _blank(text[found.start() : end])
        at = end
    return "".join(parts) + text[at:]


def _without_tests(code):
    at = 0
    while found := FOR_TESTS.search(code, at):
        at = found.end()
        if code[at : at + 1] == "{":
            at = _closing(code, at)
        code = code[: found.start()] + _blank(code[found.start() : at]) + code[at:]
    return code


def _closing(code, opening):
    """Where the brace is closed that is opened there."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise ValueError(f"a brace is not closed: {code[opening : opening + 40]}")
