"""The watched run: hooks put in place, and one session that decides what each rare event is and what is done about
it."""
