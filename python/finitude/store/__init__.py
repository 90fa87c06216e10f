"""Reads what a run writes while it trains: store.sqlite and events.jsonl. Loads no torch; the files may be anyone's."""
