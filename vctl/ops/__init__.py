"""One function per user intent: look, check, one transaction, and the answer in its documented JSON form."""
