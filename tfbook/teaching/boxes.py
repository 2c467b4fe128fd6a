"""How lines and cards look where no style sheet of the book reaches: in JupyterLab, on GitHub.

JupyterLab shows the outputs of a notebook that was not run on this machine through a sanitiser. It
lets inline styles pass, and of those only plain colours: no variables of a theme, no
`currentColor`. So a box has a coloured edge and a tint that stand out on white and on black, and
takes the colour of its text from where it stands. In the page the book's style sheet has the last
word, by the class of the element.

Explained in: the preface, "Three kinds of executable content".
"""

# Each has a contrast of at least 3:1 to white and to JupyterLab's darkest ground.
COLOURS = {
    "green": (46, 139, 87),
    "red": (217, 83, 79),
    "blue": (59, 130, 196),
    "grey": (128, 128, 128),
}


def colour(name: str) -> str:
    """Return a colour of `COLOURS` as CSS.

    Raises:
        ValueError: if there is no colour of that name.
    """
    if name not in COLOURS:
        raise ValueError(f"name must be one of {', '.join(COLOURS)}, got {name!r}")
    return "#" + "".join(f"{part:02x}" for part in COLOURS[name])


def box(name: str) -> str:
    """Return the inline style of a box with an edge of a colour of `COLOURS`.

    Raises:
        ValueError: if there is no colour of that name.
    """
    edge = colour(name)
    tint = ", ".join(map(str, COLOURS[name]))
    return (
        f"border-left: 4px solid {edge}; border-radius: 0 6px 6px 0; "
        f"background-color: rgba({tint}, 0.08); padding: 0.35rem 0.9rem; margin: 0.35rem 0"
    )
