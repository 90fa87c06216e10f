"""Runs a command in a terminal and draws what that shows at its end as SVG, for docs/images.

    python tools/terminal_picture.py [--columns N] [--rows N] [--until TEXT] OUT.svg COMMAND...

The first line of the picture is the command; the last is the last one that begins with TEXT. Colours are those of ANSI;
what moves the cursor is dropped, but for the start of a line."""

import argparse
import fcntl
import html
import os
import pathlib
import pty
import re
import struct
import sys
import termios

COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#76e3ea"}
TEXT, BACKGROUND, MUTED = "#d6dde6", "#11161d", "#8b949e"
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"
WIDTH, HEIGHT, MARGIN = 7.83, 18, 14  # of a character of 13 px, of a line, around them
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def output_of(command, columns, rows):
    """What it writes to a terminal of that size, whatever its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.environ.pop("NO_COLOR", None)
        os.environ["TERM"] = "xterm-256color"
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so that the last writer has closed it
            part = b""
        if not part:
            break
        parts.append(part)
    os.waitpid(pid, 0)
    os.close(terminal)
    return b"".join(parts).decode(errors="replace")


def runs_of(line, style):
    """([(text, style)] of a line, the style behind it). A style: the numbers that are on."""
    runs, at = [], 0
    for found in [*SEQUENCE.finditer(line), None]:
        text = line[at : found.start() if found else len(line)]
        if text:
            runs.append((text, style))
        if found is None:
            return runs, style
        at = found.end()
        if found[2] == "m":
            for number in found[1].split(";"):
                style = () if number in ("", "0") else (*style, number)


def shown_lines(text, columns):
    """The lines of a terminal: a carriage return begins its line again, and a long one goes into the next."""
    style, lines = (), []
    for line in text.replace("\r\n", "\n").rstrip("\r\n").split("\n"):
        runs, style = runs_of(line.rpartition("\r")[2], style)
        row, width = [], 0
        for piece, its in runs:
            while piece:
                row.append((piece[: columns - width], its))
                piece, width = piece[columns - width :], width + len(row[-1][0])
                if piece:
                    lines.append(row)
                    row, width = [], 0
        lines.append(row)
    return lines


def svg(lines, columns, title):
    def span(text, style):
        colour = next((COLOURS[number] for number in style if number in COLOURS), MUTED if "2" in style else "")
        attributes = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if "1" in style else "")
        return f"<tspan{attributes}>{html.escape(text)}</tspan>" if attributes else html.escape(text)

    width, height = round(columns * WIDTH + 2 * MARGIN), len(lines) * HEIGHT + 2 * MARGIN
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="{FONTS}" font-size="13" fill="{TEXT}">',
    ]
    for number, runs in enumerate(lines):
        y = MARGIN + (number + 1) * HEIGHT - 5
        length = round(sum(len(text) for text, _ in runs) * WIDTH, 1)
        if length:  # a font of other widths changes no column
            words = "".join(span(*run) for run in runs)
            out.append(f'<text x="{MARGIN}" y="{y}" xml:space="preserve" textLength="{length}">{words}</text>')
    return "\n".join([*out, "</g>", "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--until", default="", metavar="TEXT")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("which command?")
    words = " ".join([os.path.basename(options.command[0]), *options.command[1:]])
    text = output_of(options.command, options.columns, options.rows)
    if not text:
        sys.exit(f"terminal_picture: {words} printed nothing")
    last = [found.end() for found in re.finditer(rf"^{re.escape(options.until)}.*", text, re.MULTILINE)]
    lines = shown_lines(text[: last[-1]] if last else text, options.columns)
    shown = [[(f"$ {words}", ("1",))], *lines[-(options.rows - 1) :]]
    options.out.write_text(svg(shown, options.columns, words), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
