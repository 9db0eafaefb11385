"""Generic parts: each reads what ranks handed back, compares with a bound, and has its one wording."""
