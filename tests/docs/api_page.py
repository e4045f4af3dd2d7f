"""The part of the API's reference page that is made from the route table. Run it to bring the page up to date."""

from pathlib import Path

from pliant.wire.routes import ROUTES, NameQuery, Query, Route

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
BEGIN = "<!-- made from the route table: make docs-api -->"
END = "<!-- end of what is made from the route table -->"


def made() -> str:
    rows = [
        "| method and path | scope | body | answer | what it is for |",
        "|---|---|---|---|---|",
        *map(_row, ROUTES),
    ]
    return "\n".join([BEGIN, "", *rows, "", END])


def _row(route: Route) -> str:
    body = f"`{route.body.__name__}`" if route.body else ""
    answer = route.reply if isinstance(route.reply, str) else f"`{route.reply.__name__}`"
    if route.streams:
        answer += f" or {route.streams}"
    about = " ".join([route.about, *map(_query, route.query)])
    return f"| `{route.method} {route.path}` | {route.scope.value} | {body} | {answer} | {about} |"


def _query(query: Query | NameQuery) -> str:
    if isinstance(query, NameQuery):
        return f"`{query.name}`: {query.about}."
    bounds = f"{query.low:g} to {query.high:g}" if query.high < 1e9 else f"from {query.low:g}"
    return f"`{query.name}`: {query.about} ({bounds}; {query.default:g} if it is left out)."


def brought_up_to_date(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + made() + after


if __name__ == "__main__":
    PAGE.write_text(brought_up_to_date(PAGE.read_text()))
