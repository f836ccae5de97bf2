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
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_grpo() {
    local -a found open
    found=("${(@f)$(grpo completion words -- "${LBUFFER}" 2>/dev/null)}")
    open=(${(M)found:#*[=.]})  # a value or a key follows: no space
    found=(${found:#(|*[=.])})
    (( $#open )) && compadd -Q -S '' -- $open
    (( $#found )) && compadd -Q -- $found
    (( $#open + $#found )) || { compset -P '*='; _files }
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
            parser = _parser(words)
            found = candidates(words, commands=COMMANDS, options=_options(parser), argument=_argument(parser, words))
            print("".join(f"{word}\n" for word in found), end="")
    return 0


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """The parser of the subcommand, or of its own subcommand, that words name; an empty one for none."""
    parser = argparse.ArgumentParser(add_help=len(words) > 1)
    if len(words) > 1 and words[0] in COMMANDS:
        importlib.import_module(COMMANDS[words[0]][0]).add_arguments(parser)
    for word in words[1:-1]:
        for action in parser._actions:  # argparse has no public list
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
    return parser


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Flags and fixed words that a parser knows."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    fixed = [str(choice) for action in parser._actions if not action.option_strings for choice in action.choices or ()]
    return flags + fixed


def _argument(parser: argparse.ArgumentParser, words: list[str]) -> list[str] | None:
    """What the flag before the last word takes: its choices, nothing for a file; None without such a flag."""
    if len(words) < 3:
        return None
    flags = (action for action in parser._actions if words[-2] in action.option_strings and action.nargs != 0)
    return next(([str(choice) for choice in action.choices or ()] for action in flags), None)
