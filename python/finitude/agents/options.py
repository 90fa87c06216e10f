"""The options of `finitude mcp`; in a file without imports, so that completion stays fast."""

OPTIONS = ("--root", "--link", "--timeout", "--skill")
