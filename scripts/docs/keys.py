"""The pages of configuration keys, one for each section, from the source of `ramet JOB --help`."""

from __future__ import annotations

from collections.abc import Iterator

from ramet.cli.help_data import ComponentHelp, KeyHelp, SectionHelp, sections

FOLDER = "reference/keys"
INTRODUCTION = """# Keys

Every key of a run, by section. Keys are typed as `section.key=value`; `ramet train --help SECTION` prints the same.
[Configuration](../../configuration.md) explains presets, sweeps and files."""


def key_pages() -> dict[str, str]:
    """Return the index and the page of each section: place in the site -> Markdown."""
    all_sections = sections()
    index = [INTRODUCTION, "", "| section | jobs | what it is about |", "|---|---|---|"]
    index += [f"| [{one.name}]({one.name}.md) | {', '.join(one.jobs)} | {_cell(one.text)} |" for one in all_sections]
    pages = {f"{FOLDER}/index.md": "\n".join(index) + "\n"}
    return pages | {f"{FOLDER}/{one.name}.md": "\n".join(_section(one)) + "\n" for one in all_sections}


def key_navigation() -> list[str]:
    """Return the entries of the navigation."""
    return [f"{FOLDER}/index.md", *(f"{FOLDER}/{one.name}.md" for one in sections())]


def _section(section: SectionHelp) -> Iterator[str]:
    yield f"# Keys of `{section.name}`"
    if section.text:
        yield f"\n{_sentence(section.text)}"
    yield f"\nRead by: {', '.join(f'`ramet {job}`' for job in section.jobs)}."
    if section.components:
        chosen = f"{section.name}=[A,B]" if section.many else f"{section.name}=NAME"
        names = ", ".join(f"[`{one.name}`](#{one.name.lower()})" for one in section.components)
        yield f"\nChosen with `{chosen}`: {names}."
    if section.keys:
        yield ""
        yield from _table(section.keys)
    for component in section.components:
        yield from _component(component)


def _component(component: ComponentHelp) -> Iterator[str]:
    yield f"\n## {component.name}"
    yield f"\nFrom {component.provider}. {_sentence(component.text)}".rstrip()
    if component.unusable:
        yield f"\nCannot be chosen here: {component.unusable}"
    yield ""
    yield from _table(component.keys) if component.keys else ["It has no options."]


def _table(keys: tuple[KeyHelp, ...]) -> Iterator[str]:
    yield "| key | type | default | what it does |"
    yield "|---|---|---|---|"
    for key in keys:
        limits = f" ({key.allowed})" if key.allowed else ""
        yield f"| `{key.key}` | {_cell(key.type)} | {_code(key.default)} | {_cell(key.text)}{_cell(limits)} |"


def _code(text: str) -> str:
    """Return a value between backticks; a long one would make the table wide."""
    shown = text if len(text) <= 60 else f"{text[:57]}…"
    return f"`{_escaped(shown)}`" if shown.strip() else ""


def _cell(text: str) -> str:
    return _escaped(text.replace("<", "&lt;").replace("\n", " ").replace("*", "\\*"))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    text = _cell(text.strip())
    return text and f"{text[0].upper()}{text[1:].rstrip('.')}."
