"""How answers of one lab are called inside ranks: a module per lab, a function per scenario."""
