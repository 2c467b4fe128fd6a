"""How the files of solutions collect their right and wrong answers."""


def collect():
    """Return an empty list of right answers, one of wrong ones, and a decorator for each."""
    rights, wrongs = [], []

    def right(name):
        def keep(function):
            rights.append((name, function))
            return function

        return keep

    def wrong(name, message):
        def keep(function):
            wrongs.append((name, message, function))
            return function

        return keep

    return rights, wrongs, right, wrong
