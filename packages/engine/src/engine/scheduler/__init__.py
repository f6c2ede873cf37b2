"""What runs in each step: a token budget spent over requests that hold rows of a table."""
