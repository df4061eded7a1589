"""`ramet completion bash|zsh|fish`: a script for the shell, which asks this program for the words that can follow.

So it knows what is installed now: commands, options, sections, keys, choices of groups, and names of runs. Completion
libraries know only options, and most of what is typed here is `key=value`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ramet.cli.commands import COMMANDS
from ramet.cli.terminal import Parser, asked_parser, say
from ramet.config.sections import TRUST
from ramet.errors import ConfigError, RametError
from ramet.plugins.extensions import COMMANDS as ADDED
from ramet.plugins.extensions import extensions

WORDS = "--words"  # then the words after `ramet` up to the cursor, the last one unfinished
JOB_OF = {"train": "train", "sft": "sft", "eval": "eval", "play": "play", "config": "train", "check-logprobs": "train",
          "data": "data", "tool": "tool", "doctor": "doctor"}  # fmt: skip
TAKES_SEVERAL = "report"
TAKES_RUN = (TAKES_SEVERAL, "checkpoints", "export", "doctor")
BASH = r"""# ramet in bash: source <(ramet completion bash)
_ramet() {
    local line="${COMP_LINE:0:COMP_POINT}" current quoted=""
    local -a typed
    read -ra typed <<< "$line"
    [[ $line == *[[:space:]] ]] && typed+=("")
    current="${typed[-1]}"
    if [[ $current == *[\'\"]* ]]; then
        quoted=yes
        current="${current//[\'\"]/}"
        typed[-1]="$current"
    fi
    mapfile -t COMPREPLY < <("$1" completion --words "${typed[@]:1}" 2> /dev/null)
    if [[ -z $quoted && $COMP_WORDBREAKS == *=* && $current == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")  # bash completes what follows the sign, not the complete word
    fi
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace
}
complete -o default -F _ramet ramet
"""
ZSH = r"""#compdef ramet
# ramet in zsh: source <(ramet completion zsh)
_ramet() {
    local -a found
    found=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)}")
    found=(${found:#})
    if (( ! $#found )); then
        _files
        return
    fi
    compadd -S '' -- ${(M)found:#*[=./]}
    compadd -- ${found:#*[=./]}
}
compdef _ramet ramet
"""
FISH = r"""# ramet in fish: ramet completion fish | source
function __ramet_words
    set -l typed (commandline -opc) (commandline -ct)
    $typed[1] completion --words $typed[2..-1] 2> /dev/null
end
complete -c ramet -a '(__ramet_words)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(arguments: Sequence[str]) -> int:
    if arguments[:1] == [WORDS]:
        logging.disable(logging.CRITICAL)
        for word in candidates(arguments[1:] or [""]):
            say(word)
        return 0
    parser = Parser(
        prog="ramet completion",
        add_help=False,
        usage="ramet completion bash|zsh|fish",
        description="A script that completes commands, options, keys and choices; source it where your shell starts.",
        epilog="bash: source <(ramet completion bash) in ~/.bashrc; zsh: source <(ramet completion zsh) in ~/.zshrc, "
        "after compinit; fish: ramet completion fish > ~/.config/fish/completions/ramet.fish",
    )
    parser.add_argument("shell", nargs="?", choices=SCRIPTS, metavar="SHELL", help=", ".join(SCRIPTS))
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.shell is None:
        raise ConfigError(f"completion: for which shell? give one of {', '.join(SCRIPTS)}")
    say(SCRIPTS[options.shell].rstrip("\n"))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last word can become after the words before it. `words`: what follows `ramet`, up to the cursor.

    Complete words; words that end in `.`, `=` or `/` are to be continued. Empty where nothing is known: the shell then
    offers files.
    """
    *before, current = words
    if not before:
        added = [entry.name for entry in extensions(ADDED) if entry.name not in COMMANDS]
        first_words = [*COMMANDS, *added, "--help", "--version", "--debug", TRUST]
        return [word for word in first_words if word.startswith(current) and (current or not word.startswith("-"))]
    name = before[0]
    if name not in COMMANDS:
        return []
    try:
        return list(dict.fromkeys(word for word in _after(name, before[1:], current) if word.startswith(current)))
    except RametError:
        return []


def _after(name: str, before: Sequence[str], current: str) -> Iterator[str]:
    parser = asked_parser(COMMANDS[name].run)
    options = {} if parser is None else parser._option_string_actions
    previous = options.get(before[-1]) if before else None
    if previous is not None and previous.nargs != 0:
        yield from _texts(previous)
    elif current.startswith("-"):
        yield from (*options, "--debug", TRUST)
    elif "=" in current:
        yield from _values(name, before, current)
    else:
        for action in () if parser is None else parser._get_positional_actions():
            yield from _texts(action)
        named = [word for word in before if not word.startswith("-")]
        if name in TAKES_RUN and (not named or name == TAKES_SEVERAL):
            runs = sorted(folder.name for folder in Path("runs").glob("*") if folder.is_dir())
            yield from (run for run in runs if run not in named)
        if name in JOB_OF:
            yield from _keys(name, before, current)


def _texts(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices or ()]


def _keys(name: str, before: Sequence[str], current: str) -> Iterator[str]:
    """Groups and sections; after the dot of a section its keys."""
    from ramet.cli.completion_keys import Keys

    keys = Keys.of(JOB_OF[name], before)
    yield from (f"{group}=" for group in keys.groups())
    if "." in current:
        yield from (f"{key}=" for key in keys.leaves())
    else:
        yield from (f"{key.partition('.')[0]}." if "." in key else f"{key}=" for key in keys.leaves())


def _values(name: str, before: Sequence[str], current: str) -> Iterator[str]:
    if name not in JOB_OF:
        return
    from ramet.cli.completion_keys import Keys

    key, _, value = current.partition("=")
    start = value[: max(value.rfind("["), value.rfind(",")) + 1]
    ends = ("]", ",") if value.startswith("[") else ("",)
    for text in Keys.of(JOB_OF[name], before).values(key, value.removeprefix(start)):
        yield from (f"{key}={start}{text}{end}" for end in (("",) if text.endswith("/") else ends))
