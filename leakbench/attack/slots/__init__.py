"""The slots of gradient matching: the parts that a recipe chooses among, slot by slot."""
