"""The types with which a method is written: its declaration, a party, a recipe, an identity."""
