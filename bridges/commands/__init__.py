"""Commands of ``anabranch``, one module each; imported only when used."""
