"""Built-in advantage estimators and policy losses, and the arithmetic that every algorithm shares."""
