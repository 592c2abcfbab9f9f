#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Man pages and shell completion from what the program itself says: `sherd --help` and `sherd COMMAND --help` come from the
# option tables, so nothing here can say less or more than they do.
#
#   pages.py SHERD man [COMMAND]     a man page on standard output
#   pages.py SHERD bash | zsh        completion for that shell

import re
import subprocess
import sys

OPTION = re.compile(r"^  (?:-(?P<letter>\w), )?--(?P<name>[\w-]+)(?P<bare>\[=)?(?:[ ]?(?P<hint>[^ \]]+)\]?)?(?:\s{2,}(?P<help>\S.*))?$")


def ask(sherd, *args):
    return subprocess.run([sherd, *args], check=True, capture_output=True, text=True).stdout


def commands(sherd):
    """[(name, summary)] in the program's order."""
    return re.findall(r"^  (\w+) +(\S.*)$", ask(sherd, "--help").split("Commands:\n")[1].split("\n\n")[0], re.M)


def parse_help(text):
    """usage, paragraphs, options: [(letter, name, hint, bare, [help lines])]."""
    head, tail = text.split("\nOptions:\n")
    usage, *paragraphs = head.strip().split("\n\n")
    options = []
    for line in tail.rstrip("\n").split("\n"):
        if line.startswith(" " * 26):
            options[-1][4].append(line.strip())
            continue
        m = OPTION.match(line)
        assert m, f"not an option: {line!r}"
        options.append((m["letter"], m["name"], m["hint"], bool(m["bare"]), [m["help"]] if m["help"] else []))
    return usage, paragraphs, options


# ---- man pages ----


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", "\\\\&", text, flags=re.M)


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def page_head(sherd, name, summary):
    version = ask(sherd, "--version").split()[1]
    return [f'.TH "{name.upper()}" "1" "" "sherd {version}" "sherd"', ".nh", ".SH NAME", roff(f"{name} - {summary}")]


def option_head(letter, name, hint, bare):
    head = (bold("-" + letter) + ", " if letter else "") + bold("--" + name)
    if hint:
        head += f"[=\\fI{roff(hint)}\\fR]" if bare else f" \\fI{roff(hint)}\\fR"
    return head


def is_literal(paragraph):
    return any(line.startswith("  ") for line in paragraph.split("\n"))


def command_page(sherd, command):
    summary = dict(commands(sherd))[command]
    usage, paragraphs, options = parse_help(ask(sherd, command, "--help"))
    out = page_head(sherd, f"sherd-{command}", summary)
    out += [".SH SYNOPSIS", roff(usage.removeprefix("usage: ")), ".SH DESCRIPTION"]
    for paragraph in paragraphs:
        out += [".PP"]
        out += [".nf", roff(paragraph), ".fi"] if is_literal(paragraph) else [roff(paragraph)]
    out += [".SH OPTIONS"]
    for letter, name, hint, bare, text in options:
        out += [".TP", option_head(letter, name, hint, bare), roff(" ".join(text))]
    return out + [".SH SEE ALSO", bold("sherd") + "(1)"]


def main_page(sherd):
    text = ask(sherd, "--help")
    out = page_head(sherd, "sherd", "trains neural networks with state sharded over ranks")
    out += [".SH SYNOPSIS", roff("sherd COMMAND [operands] [options]"), ".SH COMMANDS"]
    for name, summary in commands(sherd):
        out += [".TP", bold(f"sherd-{name}") + "(1)", roff(summary)]
    status = re.search(r"Exit status: (.*)", text, re.S)
    out += [".SH EXIT STATUS", roff(status[1].strip())]
    out += [".SH CONFIGURATION", roff("'sherd config --reference' prints every key with its default.")]
    return out


# ---- completion ----


def words(sherd):
    """{command: ([option], {option: [word]})}: the words are those of a choice, as its hint lists them."""
    found = {}
    for name, _ in commands(sherd):
        options = parse_help(ask(sherd, name, "--help"))[2]
        choices = {o[1]: [w for w in o[2].split("|") if not w.isupper()] for o in options if o[2] and "|" in o[2] and re.fullmatch(r"[\w|]+", o[2])}
        found[name] = (["--" + o[1] for o in options], choices)
    return found


def bash(sherd):
    found = words(sherd)
    lines = ["# Completion of sherd for bash, written by packaging/pages.py.", "_sherd() {",
             '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}',
             "    COMPREPLY=()",
             "    if [ \"$COMP_CWORD\" -eq 1 ]; then",
             f'        COMPREPLY=($(compgen -W "{" ".join(found)} --help --version" -- "$word"))',
             "        return", "    fi", '    case $command$before in']
    for name, (_, choices) in found.items():
        for option, texts in choices.items():
            lines += [f"    {name}--{option}) COMPREPLY=($(compgen -W \"{' '.join(texts)}\" -- \"$word\")); return ;;"]
    lines += ["    esac", '    [[ $word == -* ]] || { COMPREPLY=($(compgen -f -- "$word")); return; }', "    case $command in"]
    for name, (options, _) in found.items():
        lines += [f"    {name}) COMPREPLY=($(compgen -W \"{' '.join(options)}\" -- \"$word\")) ;;"]
    return lines + ["    esac", "}", "complete -o filenames -o bashdefault -F _sherd sherd"]


def zsh_text(text):
    return re.sub(r"([\[\]:\\'])", lambda m: "'\\''" if m[1] == "'" else "\\" + m[1], text)


def zsh(sherd):
    lines = ["#compdef sherd", "# Completion of sherd for zsh, written by packaging/pages.py.", "_sherd() {",
             "    if ((CURRENT == 2)); then", "        local -a commands=("]
    lines += [f"            '{name}:{zsh_text(summary)}'" for name, summary in commands(sherd)]
    lines += ["        )", "        _describe command commands", "        return", "    fi", "    local command=$words[2]",
              "    shift words", "    ((CURRENT--))", "    case $command in"]
    for name, _ in commands(sherd):
        lines += [f"    {name})", "        _arguments \\"]
        for _, option, hint, bare, text in parse_help(ask(sherd, name, "--help"))[2]:
            value = ""
            if hint:
                values = f"({hint.replace('|', ' ')})" if re.fullmatch(r"\w+(\|\w+)+", hint) else "_files"
                value = ("=-" if bare else "=") + f"[{zsh_text(' '.join(text))}]" + ("::" if bare else ":")
                value += f"{zsh_text(hint)}:{values}"
            else:
                value = f"[{zsh_text(' '.join(text))}]"
            lines += [f"            '*--{option}{value}' \\"]
        lines += ["            '*:file:_files' ;;"]
    return lines + ["    esac", "}", '_sherd "$@"']


def main():
    sherd, what, *rest = sys.argv[1:]
    if what == "man":
        lines = command_page(sherd, rest[0]) if rest else main_page(sherd)
    else:
        lines = {"bash": bash, "zsh": zsh}[what](sherd)
    print("\n".join(lines))


main()
