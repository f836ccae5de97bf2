"""``grpo completion``: completion of commands, groups, recipes, settings and values in bash and zsh.

eval "$(grpo completion bash)"
"""

import argparse
import importlib

from launcher.cli import COMMANDS
from launcher.completion import candidates

_BASH = r"""_grpo() {
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##* }"
    local -a found
    mapfile -t found < <(grpo completion words -- "$line" 2>/dev/null)
    local cut=""
    case "$word" in *[=:]*) cut="${word%"${word##*[=:]}"}" ;; esac  # bash breaks words at = and :
    COMPREPLY=("${found[@]#"$cut"}")
    if [[ ${#found[@]} -eq 1 && "${found[0]}" == *[=.] ]]; then compopt -o nospace; fi
}
complete -o default -F _grpo grpo
"""
_ZSH = r"""#compdef grpo
_grpo() {
    local -a found
    found=("${(@f)$(grpo completion words -- "${LBUFFER}" 2>/dev/null)}")
    compadd -Q -S '' -- ${found:#}
}
compdef _grpo grpo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo completion``."""
    parser.add_argument("what", choices=("bash", "zsh", "words"), help="a shell's script; `words` is what it calls")
    parser.add_argument("line", nargs="?", default="", help="with `words`: the command line up to the cursor")


def run(options: argparse.Namespace) -> int:
    """Print a script to evaluate, or the words that may come next."""
    match options.what:
        case "bash":
            print(_BASH, end="")
        case "zsh":
            print(_ZSH, end="")
        case _:
            words = options.line.split(" ")[1:]
            for word in candidates(words, commands=COMMANDS, options=_options(words)):
                print(word)
    return 0


def _options(words: list[str]) -> list[str]:
    """Flags and fixed words that the subcommand's own parser knows."""
    if len(words) < 2 or words[0] not in COMMANDS:
        return []
    parser = argparse.ArgumentParser(add_help=True)
    importlib.import_module(COMMANDS[words[0]][0]).add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]  # argparse has no public list
    fixed = [str(choice) for action in parser._actions if not action.option_strings for choice in action.choices or ()]
    return flags + fixed
