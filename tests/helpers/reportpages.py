"""Pages of HTML as tests look at them."""

import re
from collections import Counter
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta", "wbr"}
LOADING = ("src", "href", "data", "action", "poster", "srcset")


class Page(HTMLParser):
    """A page that is well formed, or ``wrong`` says where it is not."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.references: set[str] = set()
        self.loads: list[str] = []
        self.wrong: list[str] = []
        self.tags: Counter[str] = Counter()
        self.sections: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is open at the end" for tag in self._open]

    @property
    def text(self) -> str:
        """All texts, those of the style left out."""
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self._open.append(tag)
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids[values["id"]] += 1
        if tag == "section":
            self.sections.append(values["id"])
        for name, value in values.items():
            if name in LOADING and value.startswith("#"):
                self.references.add(value[1:])
            elif name in LOADING and not value.startswith("data:"):
                self.loads.append(f"{tag} {name}={value[:60]}")
            if name in ("for", "aria-labelledby"):
                self.references.add(value)
            self.references |= set(re.findall(r"url\(#([^)]+)\)", value))

    def handle_endtag(self, tag: str) -> None:
        last = self._open.pop() if self._open else "nothing"
        if last != tag:
            self.wrong.append(f"line {self.getpos()[0]}: </{tag}> closes <{last}>")

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.texts.append(data)
