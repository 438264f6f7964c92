"""What is written in a chart."""

import xml.etree.ElementTree as ET


def texts_of(svg: str | bytes) -> set[str | None]:
    """Every title, label and number of it."""
    return {element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
