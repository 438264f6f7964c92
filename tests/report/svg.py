"""What is written in a chart."""

import xml.etree.ElementTree as ET

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts_of(svg: str | bytes) -> set[str | None]:
    """Every title, label and number of it."""
    return {element.text for tag in ("text", "tspan") for element in ET.fromstring(svg).iter(f"{NAMESPACE}{tag}")}
