"""`finitude live`: a page in the browser that shows runs while they train. Loads no torch."""
