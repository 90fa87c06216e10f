"""`finitude selftest`: puts a NaN or Inf into the user's own program on purpose, and shows whether its birth is found
there.

`command` is the word of the command line; it starts the program in processes of its own, `__main__` is what those run,
`inside` is what happens in them. Nothing here is imported by any other word, and a process injects only where the
command has left an order for it."""
