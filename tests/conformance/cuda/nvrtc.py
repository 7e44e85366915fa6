"""The runtime compiler, of which the tests want only the type of its errors."""


class nvrtcResult(int):
    pass


def nvrtcGetErrorString(error):
    return error, str(error)
