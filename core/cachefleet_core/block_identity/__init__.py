"""What names a block besides its tokens, in block keys.

adapters  an adapter (LoRA) by its name and the place that it was loaded from
media     images and the like, by what and where they are
"""
