"""A class with the names of what a frame holds."""


class Frame:
    def __init__(self):
        self.gi_frame = self.f_builtins = None
