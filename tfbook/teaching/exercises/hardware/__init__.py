"""The exercises of chapter 17: few bits, loss scaling, a network on many devices, a scheduler."""
