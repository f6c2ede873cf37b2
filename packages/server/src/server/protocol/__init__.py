"""Bodies of requests and answers as msgspec types: what HTTP says, checked where it enters."""
