"""Writes the configuration reference out of the structs: names, types, defaults, and the comment beside each field."""

import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Final, get_type_hints

import msgspec

from headway.live.config_faults import section_type
from headway.live.config_words import toml_text, type_text

REFERENCE_HEAD: Final = """# Configuration

One TOML file configures everything, and every key has a default that works: Headway starts without any file.
Pass it with `--config FILE` or `HEADWAY_CONFIG=FILE`. A later origin wins: file, secrets from the environment
(`HEADWAY__AUTH__KEYS`, nothing else), flags (`--set key=value` reaches every key). Unknown keys and combinations that
cannot work are refused. `headway config validate FILE` checks, `headway config show FILE` tells where each value
came from and what was adjusted. This page is generated: `headway config reference > docs/configuration.md`.
"""


class Row(msgspec.Struct, frozen=True):
    """One key as the reference shows it."""

    key: str
    type: str
    default: str
    comment: str


class Section(msgspec.Struct, frozen=True):
    """One table of the file."""

    name: str
    text: str
    rows: tuple[Row, ...]


def sections(tree_type: type[msgspec.Struct], path: str = "", note: str = "") -> Iterator[Section]:
    """Every table of the file, in the order of the struct; `note` is the comment beside the table's field."""
    hints = get_type_hints(tree_type, include_extras=True)
    comments = field_comments(tree_type)
    rows: list[Row] = []
    inner: list[tuple[str, type[msgspec.Struct], str]] = []
    for field in msgspec.structs.fields(tree_type):
        section = section_type(hints[field.name])
        if section is not None:
            inner.append((path + field.name, section, comments.get(field.name, "")))
        else:
            rows.append(Row(field.name, type_text(hints[field.name]), _default(field), comments.get(field.name, "")))
    if rows:
        text = inspect.cleandoc(tree_type.__doc__ or "")
        yield Section(path.rstrip("."), f"{text} ({note})" if note else text, tuple(rows))
    for name, section, comment in inner:
        yield from sections(section, name + ".", comment)


def field_comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The comment on the line of each field of the class body."""
    source = textwrap.dedent(inspect.getsource(struct))
    found: dict[str, str] = {}
    name, depth = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        elif token.type == tokenize.NAME and depth == 0 and token.line.strip().startswith(f"{token.string}:"):
            name = token.string
        elif token.type == tokenize.COMMENT and name:
            found[name] = token.string.lstrip("# ").replace("|", "\\|")
        elif token.type == tokenize.NEWLINE:
            name = ""
    return found


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return toml_text(field.default_factory())
    return "required" if field.default is msgspec.NODEFAULT else toml_text(field.default)


def reference(tree_type: type[msgspec.Struct], head: str) -> str:
    """The whole page."""
    parts = [head.rstrip()]
    for section in sections(tree_type):
        title = f"## [{section.name}]" if section.name else "## Top level"
        table = ["| key | type | default | meaning |", "|---|---|---|---|"]
        table += [f"| `{row.key}` | {row.type} | `{row.default}` | {row.comment} |" for row in section.rows]
        parts.append("\n\n".join([title, section.text, "\n".join(table)]))
    return "\n\n".join(parts) + "\n"
