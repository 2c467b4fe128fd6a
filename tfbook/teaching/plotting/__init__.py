"""Pictures of arrays, and schematic drawings, each with a text alternative.

Of arrays there are heatmaps, lines, bars, spreads of several runs, rooflines and annotated
tensors; a `Drawing` has blocks, matrices, arrows, a stream, and arrows in the plane;
`who_sees_whom` draws a mask.

Every function takes numbers (lists, arrays or tensors), never a model, displays one PNG and
returns `None`. The title says what to see; `alt` says it to a reader who cannot see the picture
and is refused when it is empty or a placeholder. The same call gives the same bytes.

In the dark theme the page inverts the pictures and turns the hues back, so a title speaks of
strong and pale cells, not of dark and light ones.
"""

from tfbook.teaching.plotting._curves import bars, lines, spreads
from tfbook.teaching.plotting._drawing import Drawing, Place, who_sees_whom
from tfbook.teaching.plotting._look import figure, show, style
from tfbook.teaching.plotting._maps import heatmap, tensor_picture
from tfbook.teaching.plotting._roofline import roofline

__all__ = [
    "Drawing",
    "Place",
    "bars",
    "figure",
    "heatmap",
    "lines",
    "roofline",
    "show",
    "spreads",
    "style",
    "tensor_picture",
    "who_sees_whom",
]
