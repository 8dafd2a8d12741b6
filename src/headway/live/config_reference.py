"""Writes the configuration reference out of the structs: names, types, defaults, and the comment beside each field."""

import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from types import NoneType
from typing import Final, get_args, get_origin, get_type_hints

import msgspec

from headway.live.config_faults import section_type
from headway.live.config_policies import POLICIES
from headway.live.config_texts import TEXTS
from headway.live.config_words import tags, toml_text, type_text
from headway.sched.registry import discover

PARTS: Final = {"slo": "ROUTE"}  # how the reference calls the open key of a table of tables
REFERENCE_HEAD: Final = """# Configuration

One TOML file configures everything, and every key has a default that works: Headway starts without any file.
Pass it with `--config FILE` or `HEADWAY_CONFIG=FILE`. A later origin wins: file, secrets from the environment
(`HEADWAY__AUTH__KEYS`, `HEADWAY__JOBS__URL`, `HEADWAY__JOBS__WEBHOOKS__SECRETS`, nothing else), flags (`--set
key=value` reaches every key). Unknown keys and combinations that cannot work are refused.
`headway config validate FILE` checks all that `headway serve` checks before it loads a model,
`headway config show FILE` tells where each value came from and what was adjusted. This page is generated:
`headway config reference > docs/configuration.md`.

## API keys

Without `auth.keys` everybody may ask. `headway config hash-key` reads a key (from a prompt, or from a pipe) and prints
the line to paste; nobody can read the key in the file:

```toml
[[auth.keys]]
hash = "sha256:..."  # what `headway config hash-key` prints
tenant = "team-a"
```

The same list may come from the environment, as one TOML array, and then replaces that of the file:

```sh
export HEADWAY__AUTH__KEYS='[{ hash = "sha256:...", tenant = "team-a" }, { hash = "sha256:...", tenant = "ops" }]'
```

Clients send `Authorization: Bearer KEY`. Some routes answer without a key, whatever is configured, for probes and
scrapers: `/health`, `/ready`, `/ping`, `/version`, `/load`, `/metrics`, `/openapi.json`. Where that tells too much,
keep the port from strangers.
"""


class Row(msgspec.Struct, frozen=True):
    """One key as the reference shows it."""

    key: str
    type: str
    default: str
    comment: str


class Place(msgspec.Struct, frozen=True):
    """Where a table stands: its key, the comment beside its field, and the values it has without any file."""

    path: str = ""
    note: str = ""
    default: msgspec.Struct | None = None


ROOT: Final = Place()


class Section(msgspec.Struct, frozen=True):
    """One table of the file."""

    name: str
    text: str
    rows: tuple[Row, ...]


def sections(tree_type: type[msgspec.Struct], at: Place = ROOT) -> Iterator[Section]:
    """Every table of the file, in the order of the struct."""
    hints = get_type_hints(tree_type, include_extras=True)
    comments = field_comments(tree_type)
    rows: list[Row] = []
    inner: list[Section] = []
    for field in msgspec.structs.fields(tree_type):
        key, hint = f"{at.path.partition(' ')[0]}.{field.name}".lstrip("."), hints[field.name]
        text = TEXTS.get(key, comments.get(field.name, ""))
        default = _default(field) if at.default is None else getattr(at.default, field.name)
        section, parts = section_type(hint), _parts(key, hint)
        if section is not None:
            inner += sections(section, Place(key, text, default if isinstance(default, msgspec.Struct) else None))
            continue
        rows.append(Row(field.name, type_text(hint), _shown(default), text))
        for part in parts:
            inner += sections(part[1], Place(part[0]))
    if rows:
        text = inspect.cleandoc(tree_type.__doc__ or "")
        yield Section(at.path, f"{text} ({at.note})" if at.note else text, tuple(rows))
    yield from inner


def _parts(key: str, hint: object) -> list[tuple[str, type[msgspec.Struct]]]:
    """The tables that stand inside a table of tables or a list of tables; of a union each, by the key that tells."""
    arguments = get_args(hint)
    if not arguments:
        return []
    is_table, is_list = get_origin(hint) is dict, get_origin(hint) in (tuple, list)
    held = arguments[-1 if is_table else 0] if is_table or is_list else hint
    place = f"{key}.{PARTS.get(key, 'NAME')}" if is_table else f"{key}[]" if is_list else key
    inner = section_type(held)
    if inner is not None:
        return [(place, inner)] if is_table or is_list else []
    if tags(held) is None:
        return []
    return [(f"{place} {_told(option)}", option) for option in get_args(held) if option is not NoneType]


def _told(option: type[msgspec.Struct]) -> str:
    config = option.__struct_config__
    return f'{config.tag_field} = "{config.tag}"'


def field_comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The comment on the line of each field of the class body, and of those of the structs that it is made from."""
    found: dict[str, str] = {}
    for part in reversed(struct.__mro__):
        if issubclass(part, msgspec.Struct) and part is not msgspec.Struct:
            found |= _body_comments(part)
    return found


def _body_comments(struct: type[msgspec.Struct]) -> dict[str, str]:
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


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def _shown(default: object) -> str:
    return "required" if default is msgspec.NODEFAULT else toml_text(default)


def policies_text(package: str, key: str) -> str:
    """The policies that may be named at `key`, with what they take."""
    table = ["| `type` | `params` | good at |", "|---|---|---|"]
    for name, policy in discover(package).items():
        hints = get_type_hints(policy.Params, include_extras=True)
        params = [
            f"`{field.name}` {type_text(hints[field.name])}, default `{_shown(_default(field))}`"
            for field in msgspec.structs.fields(policy.Params)
        ]
        text = " ".join(inspect.cleandoc(policy.Params.__doc__ or "").split())
        taken = f"{'; '.join(params)}. {text}" if params else "none"
        table.append(f"| `{name}` | {taken} | {policy.good_at} |")
    example = f"{key.rpartition('.')[2]} = {{ type = ..., params = {{ ... }} }}"
    return f"Written `{example}`. `headway policies {key}` tells more of these:\n\n" + "\n".join(table)


def _title(name: str) -> str:
    path, _, kind = name.partition(" ")
    title = f"## [[{path[:-2]}]]" if path.endswith("[]") else f"## [{path}]"
    return f"{title} {kind}".rstrip()


def reference(tree_type: type[msgspec.Struct], head: str) -> str:
    """The whole page."""
    parts = [head.rstrip()]
    shown: set[str] = set()  # tables that several kinds of a union have
    for section in sections(tree_type):
        if section.name in shown:
            continue
        shown.add(section.name)
        title = _title(section.name) if section.name else "## Top level"
        table = ["| key | type | default | meaning |", "|---|---|---|---|"]
        table += [f"| `{row.key}` | {row.type} | `{row.default}` | {row.comment} |" for row in section.rows]
        package = POLICIES.get(section.name)
        more = [] if package is None else [policies_text(package, section.name)]
        parts.append("\n\n".join([title, section.text, "\n".join(table), *more]))
    return "\n\n".join(parts) + "\n"
