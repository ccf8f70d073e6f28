"""Check the words of the project: idioms in documents, docstrings and comments, and public class names defined twice.

``docs/glossary.md`` has the terms. A folder may have five matches in 10,000 words.

    check_words.py                             # check; the exit status is 1 if a folder has more idioms
    check_words.py --table                     # matches and words per folder
    check_words.py --lines docs hpcckpt/jobs   # the lines with matches in these folders, worst file first
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PHRASES = (
    "stands?|anew|alike|amid|amiss|whoever|nobody|tells? of|told of|says? whether|lets? go|hands? (in|on)"
    "|so many|of (its|our) own|of ours"
)
IDIOMS = re.compile(
    rf"\b({PHRASES})\b".replace(" ", r"\s+(?:(?:#|//|\*)\s*)?"), re.IGNORECASE
)  # over the end of a line too
PER_10000 = 5
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
CODE_IN_MARKDOWN = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
OLD_DECISION = re.compile(r"docs/decisions/00([0-2]\d|3[0-7])-")


@dataclass(frozen=True)
class Match:
    """One idiom in a file."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Count:
    """Words and matches of a file or folder."""

    n_words: int = 0
    matches: tuple[Match, ...] = ()

    def __add__(self, other: Count) -> Count:
        return Count(self.n_words + other.n_words, self.matches + other.matches)

    @property
    def per_10000(self) -> float:
        """Matches per 10,000 words."""
        return 1e4 * len(self.matches) / max(self.n_words, 1)


# -- the prose of a file ---------------------------------------------------------------------------


def joined(comments: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return comments with those of adjacent lines as one text."""
    texts: list[tuple[int, str]] = []
    for line, comment in comments:
        if texts and texts[-1][0] + texts[-1][1].count("\n") + 1 == line:
            texts[-1] = (texts[-1][0], f"{texts[-1][1]}\n{comment}")
        else:
            texts.append((line, comment))
    return texts


def python_prose(source: str) -> list[tuple[int, str]]:
    """Return line and text of the docstrings and comments of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = joined([(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.append((node.lineno, node.value.value))
    return texts


def c_prose(source: str) -> list[tuple[int, str]]:
    """Return line and text of the comments of a C or C++ file."""
    found = (match for match in C_COMMENT.finditer(source) if match[0].startswith(("//", "/*")))
    return joined([(source.count("\n", 0, match.start()) + 1, match[0]) for match in found])


def hash_prose(source: str) -> list[tuple[int, str]]:
    """Return line and text of the comments of a file whose comments begin with ``#``."""
    lines = enumerate(source.splitlines(), 1)
    return joined([(number, match[0]) for number, line in lines if (match := re.search(r"(?:^|(?<=\s))#.*", line))])


def markdown_prose(source: str) -> list[tuple[int, str]]:
    """Return a document without its code; line numbers are kept."""
    return [(1, CODE_IN_MARKDOWN.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), source))]


PROSE = {
    ".py": python_prose,
    ".pyi": python_prose,
    ".md": markdown_prose,
    **dict.fromkeys([".c", ".cc", ".cpp", ".h", ".hpp"], c_prose),
    **dict.fromkeys([".sh", ".sbatch", ".pbs", ".qsub", ".toml", ".cmake"], hash_prose),
}


def count(file: str, source: str) -> Count:
    """Return the words and matches of one file; none if files of its kind have no prose."""
    prose = PROSE.get(Path(file).suffix)
    if prose is None or OLD_DECISION.search(file):
        return Count()
    texts = prose(source)
    matches = tuple(
        Match(file, first + text.count("\n", 0, hit.start()), " ".join(hit[0].split()))
        for first, text in texts
        for hit in IDIOMS.finditer(text)
    )
    return Count(sum(len(WORD.findall(text)) for _, text in texts), matches)


# -- class names -----------------------------------------------------------------------------------


def public_classes(source: str) -> list[str]:
    """Return the names of the public classes that a module defines."""
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def defined_twice(modules: dict[str, str]) -> dict[str, list[str]]:
    """Return the public class names that more than one public module defines, with the modules' files."""
    files = defaultdict(list)
    for file, source in sorted(modules.items()):
        is_private = re.fullmatch(r"_[a-z]\w*\.py", Path(file).name) is not None
        for name in [] if is_private else public_classes(source):
            files[name].append(file)
    return {name: found for name, found in sorted(files.items()) if len(found) > 1}


# -- the project -----------------------------------------------------------------------------------


def folder(file: str) -> str:
    """Return the folder by which a file is counted: two parts within the package, else one."""
    parts = file.split("/")[:-1]
    return "/".join(parts[: 2 if parts[:1] == ["hpcckpt"] else 1]) or "."


def sources(root: Path) -> dict[str, str]:
    """Return the texts of the project's files by name."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    files = [file for file in listed if Path(file).suffix in PROSE and (root / file).is_file()]
    return {file: (root / file).read_text("utf-8") for file in files}


def problems(counts: dict[str, Count], twice: dict[str, list[str]]) -> Iterator[str]:
    """Yield the folders with too many matches, and the class names that are defined twice."""
    for name, found in counts.items():
        if found.per_10000 > PER_10000:
            allowed = int(PER_10000 * found.n_words / 1e4)
            yield f"{name}: {len(found.matches)} idioms, at most {allowed} are allowed (--lines {name} shows them)"
    for name, files in twice.items():
        yield f"class {name} is defined in {', '.join(files)}"


def print_table(counts: dict[str, Count]) -> None:
    """Print matches and words per folder, worst first."""
    total = sum(counts.values(), Count())
    for name, found in [*sorted(counts.items(), key=lambda item: -item[1].per_10000), ("total", total)]:
        print(f"{name:24} {len(found.matches):5} in {found.n_words:6} words: {found.per_10000:6.1f} per 10,000")


def print_lines(counts: dict[str, Count], wanted: list[str], texts: dict[str, str]) -> None:
    """Print the lines with matches in the folders asked for, worst file first."""
    matches = [match for name, found in counts.items() if name in wanted for match in found.matches]
    per_file = Counter(match.file for match in matches)
    for match in sorted(matches, key=lambda match: (-per_file[match.file], match.file, match.line)):
        line = texts[match.file].splitlines()[match.line - 1].strip()
        print(f"{match.file}:{match.line}: [{match.text}] {line}")


def main() -> int:
    """Run the check, or print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--table", action="store_true", help="print matches and words per folder")
    parser.add_argument("--lines", nargs="+", metavar="FOLDER", help="print the lines with matches")
    args = parser.parse_args()

    texts = sources(args.root)
    counts: dict[str, Count] = defaultdict(Count)
    for file, source in texts.items():
        counts[folder(file)] += count(file, source)
    twice = defined_twice({f: s for f, s in texts.items() if f.startswith("hpcckpt/") and f.endswith(".py")})

    if args.table:
        print_table(counts)
    if args.lines:
        print_lines(counts, args.lines, texts)
    found = list(problems(counts, twice))
    print("".join(f"words: {problem}\n" for problem in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
