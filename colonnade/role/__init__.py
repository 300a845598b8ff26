"""What a method is written with: its declaration, a party, a recipe, an identity."""
