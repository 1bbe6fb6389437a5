"""What narrow charts share: lines of text from top to bottom, and a legend. Their texts are legible on a phone too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.text_width import width, wrap
from pytest_ecornn.results.formatting import one_line

# In pixels. A phone shows a picture at half its width or a little more: hence narrow, with large texts.
WIDTH, MARGIN, SIZE, LINE = 640, 14, 14, 19
_SAMPLE, _BETWEEN_SAMPLES = 20, 20
MIDDLE = svg.BASELINE * SIZE  # from the middle of a text down to its baseline

Sample = tuple[str, Callable[[float, float], Iterable[Element]]]


@dataclass
class PictureColumn:
    """A picture that grows downwards. y: where what comes next begins."""

    title: str
    parts: list[Element] = field(default_factory=list)
    y: float = MARGIN

    def __post_init__(self) -> None:
        """Begins with the title."""
        self.write(self.title, fill="ink", size=svg.TITLE_SIZE, is_bold=True)

    def write(self, content: str, *, fill: str = "weak", size: float = SIZE, is_bold: bool = False, max_lines: int = 3) -> None:
        """Adds a text, wrapped to the width, of so many lines at most. An empty one adds nothing."""
        for line in wrap(one_line(content), WIDTH - 2 * MARGIN, size, is_bold, max_lines) if content else ():
            self.parts.append(svg.text(MARGIN, self.y + size, line, size=size, is_bold=is_bold, fill=fill))
            self.y += LINE + size - SIZE

    def legend(self, samples: Sequence[Sample]) -> None:
        """Adds samples with their labels. A sample is drawn around a point."""
        x: float = MARGIN
        for label, draw in samples:
            wide = _SAMPLE + width(label, SIZE) + _BETWEEN_SAMPLES
            if x > MARGIN and x + wide > WIDTH - MARGIN + _BETWEEN_SAMPLES:
                x, self.y = MARGIN, self.y + LINE
            middle = self.y + LINE / 2
            self.parts += [*draw(x + _SAMPLE / 2 - 2, middle), svg.text(x + _SAMPLE, middle + MIDDLE, label, size=SIZE)]
            x += wide
        self.y += LINE if samples else 0

    def picture(self) -> svg.Picture:
        """Returns what was added, as a picture."""
        return svg.Picture(self.title, WIDTH, self.y + MARGIN, self.parts)
