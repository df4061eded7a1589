"""Built-in advantage estimators and losses, and the arithmetic that every algorithm shares."""
