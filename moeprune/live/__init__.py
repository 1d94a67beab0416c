"""What folders that handle live models share of them; it imports none of those folders."""
